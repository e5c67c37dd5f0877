// SPDX-License-Identifier: GPL-2.0-or-later
//! Control groups for children: cgroup v2, its cpu controller only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use holdfast_agent::protocol::{Failure, Group, Reply};

use crate::children::Child;

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLER: &str = "cpu";

/// Groups that it made, each after its parent.
#[derive(Default)]
pub(crate) struct Groups {
    made: Mutex<Vec<PathBuf>>,
}

impl Groups {
    /// Puts a child into a group, and threads of it into groups below.
    pub(crate) fn put(&self, child: &Child, spec: &Group) -> Result<Reply, Failure> {
        let failed = |what: String| {
            Failure::new(format!("putting `{}` into the group {}: {what}", spec.name, spec.group))
        };
        let root = Path::new(ROOT);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|c| c == CONTROLLER) {
            let why = format!("{ROOT} is no cgroup v2 with a {CONTROLLER} controller");
            return Err(failed(why));
        }

        let mut group = root.to_owned();
        for (depth, part) in Path::new(&spec.group).iter().enumerate() {
            self.enable_below(&group).map_err(failed)?;
            group.push(part);
            self.make(&group).map_err(failed)?;
            if depth == 0 {
                write(&group.join("cpu.weight"), &spec.weight.to_string()).map_err(failed)?;
            }
        }
        write(&group.join("cgroup.procs"), &child.pid.to_string()).map_err(failed)?;
        if spec.threads.is_empty() {
            return Ok(Reply::Done);
        }

        let threads = child.threads().map_err(|e| failed(e.to_string()))?;
        for (_, below) in &spec.threads {
            let below = group.join(below);
            self.make(&below).map_err(failed)?;
            write(&below.join("cgroup.type"), "threaded").map_err(failed)?;
        }
        // Only a group of threaded groups may have both members and controllers.
        self.enable_below(&group).map_err(failed)?;
        for (tid, comm) in threads {
            let mut meant = spec.threads.iter().filter(|(name, _)| comm.starts_with(name));
            if let Some((_, below)) = meant.next() {
                let file = group.join(below).join("cgroup.threads");
                write(&file, &tid.to_string()).map_err(|e| failed(format!("{comm}: {e}")))?;
            }
        }
        Ok(Reply::Done)
    }

    fn make(&self, group: &Path) -> Result<(), String> {
        match fs::create_dir(group) {
            Ok(()) => self.made.lock().expect("no holder panics").push(group.to_owned()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (),
            Err(e) => return Err(format!("making {}: {e}", group.display())),
        }
        Ok(())
    }

    fn enable_below(&self, group: &Path) -> Result<(), String> {
        write(&group.join("cgroup.subtree_control"), &format!("+{CONTROLLER}"))
    }

    /// Removes the groups that it made; a group with members stays.
    pub(crate) fn remove(&self) {
        for group in self.made.lock().expect("no holder panics").drain(..).rev() {
            let _ = fs::remove_dir(group);
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("writing {text} to {}: {e}", file.display()))
}
