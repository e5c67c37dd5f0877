// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs this machine's own programs: bounded, interruptible, their last words kept.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Interval at which a running program is checked.
const POLL: Duration = Duration::from_millis(50);
/// Longest a program that only prints something may take.
const OUTPUT_LIMIT: Duration = Duration::from_secs(60);

/// Runs it to its end, calling `tick` now and then; an error unless it exits with 0.
pub(crate) fn with_limit(command: &mut Command, limit: Duration, tick: impl FnMut()) -> Result<()> {
    command.stdout(Stdio::null());
    collect(command, limit, tick).map(drop)
}

/// Its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    command.stdout(Stdio::piped());
    collect(command, OUTPUT_LIMIT, || {})
}

fn collect(command: &mut Command, limit: Duration, mut tick: impl FnMut()) -> Result<String> {
    let name = describe(command);
    let failed = |why: String| Error::Command { command: name.clone(), why };
    // SAFETY: prctl is async-signal-safe. The thread that forks also waits below, so the program
    // ends early only if this process is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let stdout = child.stdout.take().map(read_all);
    let stderr = read_all(child.stderr.take().expect("was piped"));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| failed(e.to_string()))? {
            Some(status) => break status,
            None if holdfast_signals::is_asked() => {
                end(&mut child);
                return Err(Error::Interrupted);
            }
            None if start.elapsed() > limit => {
                end(&mut child);
                return Err(failed(format!("not done after {} s", limit.as_secs())));
            }
            None => {
                tick();
                std::thread::sleep(POLL);
            }
        }
    };
    let stderr = stderr.join().unwrap_or_default();
    if !status.success() {
        return Err(failed(format!("{status}: {}", stderr.trim())));
    }
    Ok(stdout.map(|s| s.join().unwrap_or_default()).unwrap_or_default())
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn read_all(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Program and the first few arguments.
fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().take(4).map(|a| a.to_string_lossy().into_owned()));
    if command.get_args().len() > 4 {
        words.push("...".into());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_what_a_program_said_when_it_failed() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("why"), "{text}");
    }

    #[test]
    fn ends_a_program_that_takes_too_long() {
        let limit = Duration::from_millis(100);
        let error = with_limit(Command::new("sleep").arg("60"), limit, || {}).unwrap_err();
        assert!(error.to_string().contains("not done"), "{error}");
    }
}
