// SPDX-License-Identifier: GPL-2.0-or-later
//! A private apt root: the machine's mirror, keyring and proxy, none of its state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::Suite;
use crate::error::{Error, Result};
use crate::progress::{Progress, megabytes};
use crate::run;

/// A kind of list of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// `Packages`.
    Binary,
    /// `Sources`.
    Source,
}

/// Lists older than this are refreshed.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Longest a refresh may take.
const REFRESH_LIMIT: Duration = Duration::from_secs(600);
/// Names the mirror if the machine's apt has none.
const MIRROR_VARIABLE: &str = "HOLDFAST_DEBIAN_MIRROR";

pub(super) struct Root {
    dir: PathBuf,
}

impl Root {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        for sub in ["lists/partial", "cache/archives/partial"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).map_err(Error::io("creating", &path))?;
        }
        Ok(Root { dir: dir.to_owned() })
    }

    /// Makes sure that lists younger than [`MAX_AGE`] are there, or older ones if the mirror is
    /// down.
    pub(super) fn refresh(&self, wanted: &[(Suite, Kind)], progress: &Progress) -> Result<()> {
        let stale: Vec<_> = wanted.iter().filter(|&&key| !self.is_fresh(key)).collect();
        if stale.is_empty() {
            return Ok(());
        }
        let error = match self.update(&stale, progress) {
            Ok(()) => return Ok(()),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(e) => e,
        };
        if stale.iter().all(|&&key| self.list_file(key).is_ok()) {
            progress.note(&format!(
                "package lists could not be refreshed; going on with those in the cache ({error})"
            ));
            return Ok(());
        }
        Err(Error::Packages(format!(
            "package lists could not be fetched, and the cache {} has none yet; is the machine \
             online? ({error})",
            self.dir.display()
        )))
    }

    fn update(&self, stale: &[&(Suite, Kind)], progress: &Progress) -> Result<()> {
        let names: Vec<_> = stale.iter().map(|(suite, kind)| label(*suite, *kind)).collect();
        let mut step = progress.step(format!("Package lists ({})", names.join(", ")));
        self.write_configuration(stale)?;
        let partial = self.dir.join("lists/partial");
        let before = bytes_below(&self.dir.join("lists"));
        let mut command = self.command("apt-get");
        command.args(["-qq", "--error-on=any", "update"]);
        run::with_limit(&mut command, REFRESH_LIMIT, || {
            // apt moves a list out of `partial` once it is checked.
            let now = bytes_below(&partial);
            step.at(&format!("{} and counting", megabytes(now)));
        })?;
        for &&key in stale {
            let stamp = self.stamp(key);
            fs::write(&stamp, self.mirror()?).map_err(Error::io("writing", &stamp))?;
        }
        let after = bytes_below(&self.dir.join("lists"));
        step.done(&format!("{} unpacked", megabytes(after.saturating_sub(before))));
        Ok(())
    }

    fn is_fresh(&self, key: (Suite, Kind)) -> bool {
        let modified = fs::metadata(self.stamp(key)).and_then(|m| m.modified());
        let age = modified.ok().and_then(|t| SystemTime::now().duration_since(t).ok());
        age.is_some_and(|age| age < MAX_AGE) && self.list_file(key).is_ok()
    }

    /// Has [`Root::refresh`] treat every list older than this as stale.
    pub(super) fn expire(&self, older_than: Duration) -> Result<bool> {
        let mut any = false;
        for entry in fs::read_dir(&self.dir).map_err(Error::io("listing", &self.dir))?.flatten() {
            let path = entry.path();
            let age = entry.metadata().and_then(|m| m.modified()).map(|t| t.elapsed());
            let old = age.is_ok_and(|a| a.is_ok_and(|age| age > older_than));
            if old && path.extension().is_some_and(|e| e == "refreshed") {
                fs::remove_file(&path).map_err(Error::io("removing", &path))?;
                any = true;
            }
        }
        Ok(any)
    }

    fn stamp(&self, (suite, kind): (Suite, Kind)) -> PathBuf {
        self.dir.join(format!("{}.refreshed", label(suite, kind)))
    }

    /// The text of a list.
    pub(super) fn list(&self, key: (Suite, Kind)) -> Result<String> {
        let path = self.list_file(key)?;
        fs::read_to_string(&path).map_err(Error::io("reading", &path))
    }

    fn list_file(&self, (suite, kind): (Suite, Kind)) -> Result<PathBuf> {
        let ending = match kind {
            Kind::Binary => format!("_dists_{suite}_main_binary-amd64_Packages"),
            Kind::Source => format!("_dists_{suite}_main_source_Sources"),
        };
        let lists = self.dir.join("lists");
        let entries = fs::read_dir(&lists).map_err(Error::io("listing", &lists))?;
        let mut paths = entries.flatten().map(|e| e.path());
        let found = paths.find(|p| p.to_string_lossy().ends_with(&ending));
        found.ok_or_else(|| Error::Packages(format!("{} has no *{ending}", lists.display())))
    }

    /// Sources and settings; existing lists that are not `stale` stay as they are.
    fn write_configuration(&self, stale: &[&(Suite, Kind)]) -> Result<()> {
        let mirror = find_mirror()?;
        let mut sources = String::new();
        for (suite, kind) in stale {
            let (word, target) = match kind {
                Kind::Binary => ("deb", "Packages"),
                Kind::Source => ("deb-src", "Sources"),
            };
            let signed = keyring().map(|k| format!(" signed-by={k}")).unwrap_or_default();
            sources.push_str(&format!(
                "{word} [arch=amd64 target={target} pdiffs=no lang=none{signed}] {mirror} {suite} \
                 main\n"
            ));
        }
        self.write("sources.list", &sources)?;
        self.write("mirror", &mirror)?;
        self.write("status", "")?;
        let dir = self.dir.display();
        self.write(
            "apt.conf",
            &format!(
                "Dir::Etc::sourcelist \"{dir}/sources.list\";\n\
                 Dir::Etc::sourceparts \"/dev/null\";\n\
                 Dir::State \"{dir}\";\n\
                 Dir::State::lists \"{dir}/lists\";\n\
                 Dir::State::status \"{dir}/status\";\n\
                 Dir::Cache \"{dir}/cache\";\n\
                 Dir::Cache::archives \"{dir}/cache/archives\";\n\
                 Dir::Cache::pkgcache \"\";\n\
                 Dir::Cache::srcpkgcache \"\";\n\
                 pkgCacheFile::Generate \"false\";\n\
                 APT::Architecture \"amd64\";\n\
                 APT::Sandbox::User \"\";\n\
                 APT::Get::List-Cleanup \"false\";\n\
                 Acquire::Languages \"none\";\n\
                 Acquire::GzipIndexes \"false\";\n\
                 Acquire::Retries \"3\";\n\
                 #clear APT::Update::Pre-Invoke;\n\
                 #clear APT::Update::Post-Invoke;\n\
                 #clear APT::Update::Post-Invoke-Success;\n"
            ),
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(Error::io("writing", &path))
    }

    /// The mirror of the lists, so that packages come from there, too.
    pub(super) fn mirror(&self) -> Result<String> {
        let path = self.dir.join("mirror");
        fs::read_to_string(&path).map_err(Error::io("reading", &path))
    }

    /// One of apt's programs, with this root.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).stdin(Stdio::null());
        command
    }
}

fn label(suite: Suite, kind: Kind) -> String {
    match kind {
        Kind::Binary => suite.to_string(),
        Kind::Source => format!("{suite}-sources"),
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}

fn keyring() -> Option<&'static str> {
    const KEYRINGS: [&str; 2] = [
        "/usr/share/keyrings/debian-archive-keyring.pgp",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ];
    KEYRINGS.into_iter().find(|k| Path::new(k).exists())
}

/// The Debian mirror of the machine's own configuration.
fn find_mirror() -> Result<String> {
    if let Some(mirror) = std::env::var(MIRROR_VARIABLE).ok().filter(|m| !m.is_empty()) {
        return Ok(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)"]);
    command.arg("Created-By: Packages");
    let targets = run::output(&mut command)?;
    pick_mirror(&targets).ok_or_else(|| {
        Error::Packages(format!(
            "this machine's apt has no Debian mirror; name one in {MIRROR_VARIABLE}, and install \
             debian-archive-keyring"
        ))
    })
}

fn pick_mirror(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut fields = line.splitn(4, '|');
        let whose = (fields.next()?, fields.next()?, fields.next()?);
        (whose == ("Debian", "Debian", "main")).then(|| fields.next().map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_mirror_of_the_main_archive() {
        let targets = "Other|Other|main|https://example.org/apt/\n\
                       Debian|Debian-Security|main|http://example.org/security/\n\
                       Debian|Debian|main|http://example.org/debian/\n";
        assert_eq!(pick_mirror(targets).unwrap(), "http://example.org/debian/");
        assert_eq!(pick_mirror("Ubuntu|Ubuntu|main|http://example.org/ubuntu/\n"), None);
    }
}
