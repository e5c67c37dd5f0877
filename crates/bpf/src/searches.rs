// SPDX-License-Identifier: GPL-2.0-or-later
//! Searches of guests' memory that are under way, each in a thread of its own.
//!
//! Whoever runs a VMM decides what its memory is made of: a page of a file system of its own
//! (FUSE), or one that it serves itself (userfaultfd), may never come, and who reads it can sleep
//! for ever where no signal reaches. Only resident pages are read, but one may leave in between. So
//! nobody waits for such a thread, and it holds nothing.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use holdfast_guest::reader::Attempt;

/// How many guests are searched at once.
const AT_ONCE: usize = 4;
/// A search that takes longer does not keep others from being begun. One of a terabyte may.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many there are at most, those included: then no guest is searched any more.
const MAX: usize = 64;
/// How often it is looked whether one is done, and one that takes long.
const CHECK: Duration = Duration::from_millis(10);
const LATE_CHECK: Duration = Duration::from_secs(1);

/// A search that is under way.
pub(crate) struct Search {
    /// Whose memory it is.
    pub(crate) kvm: u64,
    pub(crate) born: u64,
    pub(crate) epoch: u32,
    pub(crate) pid: u32,
    began: Instant,
    is_late: bool,
    thread: JoinHandle<Attempt>,
}

impl Search {
    /// What came of it; `Err` if it panicked.
    pub(crate) fn join(self) -> thread::Result<Attempt> {
        self.thread.join()
    }

    /// For how long it has run.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Searches(Vec<Search>);

impl Searches {
    /// May another one begin, of a VM of this process? Where one takes long others of it would,
    /// too.
    pub(crate) fn have_room_for(&self, pid: u32) -> bool {
        let nr = self.0.len();
        nr - self.nr_late() < AT_ONCE
            && nr < MAX
            && !self.0.iter().any(|search| search.is_late && search.pid == pid)
    }

    fn nr_late(&self) -> usize {
        self.0.iter().filter(|search| search.is_late).count()
    }

    /// Begins one for the VM that this says it is for.
    pub(crate) fn begin(
        &mut self,
        (kvm, born, epoch, pid): (u64, u64, u32, u32),
        now: Instant,
        search: impl FnOnce() -> Attempt + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = thread::Builder::new().name("search".into()).spawn(move || {
            let_go_of_files();
            search()
        })?;
        self.0.push(Search { kvm, born, epoch, pid, began: now, is_late: false, thread });
        Ok(())
    }

    /// Those that are done, and no longer among these.
    pub(crate) fn take_finished(&mut self, now: Instant) -> Vec<Search> {
        let mut nr_late = self.nr_late();
        for search in &mut self.0 {
            if !search.is_late && !search.thread.is_finished() && search.took(now) >= PATIENCE {
                search.is_late = true;
                let (pid, patience) = (search.pid, PATIENCE.as_secs());
                log::warn!(
                    "pid {pid}: searching its memory takes more than {patience} s; others are not \
                     kept waiting"
                );
                nr_late += 1;
                if nr_late == MAX {
                    log::warn!("{MAX} searches do not end: no guest will be read until one does");
                }
            }
        }
        self.0.extract_if(.., |search| search.thread.is_finished()).collect()
    }

    /// When to look again.
    pub(crate) fn next_check(&self, now: Instant) -> Option<Instant> {
        let of = |search: &Search| now + if search.is_late { LATE_CHECK } else { CHECK };
        self.0.iter().map(of).min()
    }
}

/// Leaves the files of the process to the other threads, but for the standard ones: while this
/// thread cannot be ended, not even by SIGKILL, what the process has loaded must not stay.
fn let_go_of_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: plain system call. The thread has a table of its own afterwards, and has opened
    // nothing yet.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if done != 0 {
        log::debug!("close_range: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::mpsc;

    use holdfast_guest::ReadError;

    use super::*;

    fn in_vain() -> Attempt {
        Attempt { found: Err(ReadError::NoStealTime), exhaustive: Duration::ZERO }
    }

    /// A search that goes on until what is given is dropped.
    fn begin_endless(searches: &mut Searches, pid: u32, now: Instant) -> mpsc::Sender<()> {
        let (end, ended) = mpsc::channel::<()>();
        let endless = move || {
            let _ = ended.recv();
            in_vain()
        };
        searches.begin((1, 1, 1, pid), now, endless).unwrap();
        end
    }

    fn wait_for_one(searches: &mut Searches, now: Instant) -> Search {
        loop {
            if let Some(search) = searches.take_finished(now).pop() {
                return search;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn so_many_are_searched_at_once() {
        let (mut searches, now) = (Searches::default(), Instant::now());
        let mut endless: Vec<_> =
            (0..4).map(|pid| begin_endless(&mut searches, pid, now)).collect();
        assert!(!searches.have_room_for(7));
        assert!(searches.take_finished(now + PATIENCE / 2).is_empty());
        assert!(!searches.have_room_for(7));
        endless.remove(2);
        let ended = wait_for_one(&mut searches, now);
        assert_eq!((ended.pid, ended.took(now + PATIENCE)), (2, PATIENCE));
        assert!(matches!(ended.join().unwrap().found, Err(ReadError::NoStealTime)));
        assert!(searches.have_room_for(7) && searches.have_room_for(1));
    }

    #[test]
    fn memory_that_never_answers_keeps_no_other_guest_waiting() {
        let (mut searches, mut now) = (Searches::default(), Instant::now());
        let mut stuck = Vec::new();
        for pid in 0..MAX as u32 {
            assert!(searches.have_room_for(pid), "{pid}");
            stuck.push(begin_endless(&mut searches, pid, now));
            if !searches.have_room_for(u32::MAX) {
                assert_eq!(searches.next_check(now), Some(now + CHECK));
                now += PATIENCE;
                assert!(searches.take_finished(now).is_empty());
                assert!(!searches.have_room_for(pid), "of the same process");
            }
        }
        // That many are too many.
        assert!(!searches.have_room_for(u32::MAX));
        assert_eq!(searches.next_check(now), Some(now + LATE_CHECK));
        stuck.pop();
        wait_for_one(&mut searches, now);
        assert!(searches.have_room_for(u32::MAX));
    }

    #[test]
    fn a_search_holds_no_file_of_the_process() {
        let _file = fs::File::open("/proc/self/status").unwrap();
        let open = || -> Vec<_> {
            let entries = fs::read_dir("/proc/thread-self/fd").unwrap();
            entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
        };
        let holds = |open: &[PathBuf]| open.iter().any(|file| file.ends_with("status"));
        assert!(holds(&open()));
        let (said, says) = mpsc::channel();
        let (mut searches, now) = (Searches::default(), Instant::now());
        let search = move || {
            said.send(open()).unwrap();
            in_vain()
        };
        searches.begin((1, 1, 1, 1), now, search).unwrap();
        let held = says.recv().unwrap();
        // The standard files, and the directory itself.
        assert!(!holds(&held) && held.len() <= 4, "{held:?}");
        wait_for_one(&mut searches, now);
        assert!(holds(&open()));
    }
}
