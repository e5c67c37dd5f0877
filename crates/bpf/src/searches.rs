// SPDX-License-Identifier: GPL-2.0-or-later
//! Searches of guests' memory in progress, each in a thread of its own.
//!
//! The owner of a VMM decides what backs its memory. A page of its own file system (FUSE), or a
//! page that it serves itself (userfaultfd), may never arrive, and a thread that reads such a page
//! can sleep for ever where no signal reaches it. Only resident pages are read, but a page may be
//! evicted in between. So no thread waits for a search, and a search holds no resources.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use holdfast_guest::reader::Attempt;

/// Guests that are searched at once.
const AT_ONCE: usize = 4;
/// A search that takes longer than this does not delay others. A search of a terabyte may.
const PATIENCE: Duration = Duration::from_secs(30);
/// Limit of all searches, including those that take long. At the limit no further search begins.
const MAX: usize = 64;
/// Interval between checks for finished searches, and for searches that take long.
const CHECK: Duration = Duration::from_millis(10);
const LATE_CHECK: Duration = Duration::from_secs(1);

/// A search in progress.
pub(crate) struct Search {
    /// VM whose memory is searched.
    pub(crate) kvm: u64,
    pub(crate) born: u64,
    pub(crate) epoch: u32,
    pub(crate) pid: u32,
    began: Instant,
    is_late: bool,
    thread: JoinHandle<Attempt>,
}

impl Search {
    /// Its result; `Err` if it panicked.
    pub(crate) fn join(self) -> thread::Result<Attempt> {
        self.thread.join()
    }

    /// Time since it began.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

/// All searches in progress.
#[derive(Default)]
pub(crate) struct Searches(Vec<Search>);

impl Searches {
    /// May a search of a VM of this process begin? If one search of a process takes long, others of
    /// it would, too.
    pub(crate) fn have_room_for(&self, pid: u32) -> bool {
        let nr = self.0.len();
        nr - self.nr_late() < AT_ONCE
            && nr < MAX
            && !self.0.iter().any(|search| search.is_late && search.pid == pid)
    }

    fn nr_late(&self) -> usize {
        self.0.iter().filter(|search| search.is_late).count()
    }

    /// Begins a search of the memory of this VM.
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

    /// Removes and returns the finished searches.
    pub(crate) fn take_finished(&mut self, now: Instant) -> Vec<Search> {
        let mut nr_late = self.nr_late();
        for search in &mut self.0 {
            if !search.is_late && !search.thread.is_finished() && search.took(now) >= PATIENCE {
                search.is_late = true;
                let (pid, patience) = (search.pid, PATIENCE.as_secs());
                log::warn!(
                    "pid {pid}: searching its memory takes more than {patience} s; searches of \
                     other VMs continue"
                );
                nr_late += 1;
                if nr_late == MAX {
                    log::warn!(
                        "{MAX} searches do not end: no further guest is read until one of \
                        them does"
                    );
                }
            }
        }
        self.0.extract_if(.., |search| search.thread.is_finished()).collect()
    }

    /// Time of the next check.
    pub(crate) fn next_check(&self, now: Instant) -> Option<Instant> {
        let of = |search: &Search| now + if search.is_late { LATE_CHECK } else { CHECK };
        self.0.iter().map(of).min()
    }
}

/// Closes this thread's copies of all files but the standard ones. SIGKILL may not end this thread,
/// and loaded BPF programs must not stay as long as it does.
fn let_go_of_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: plain system call. Afterwards the thread has a file table of its own, and has opened
    // no file yet.
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

    /// A search that lasts until the returned sender is dropped.
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
    fn the_number_of_searches_at_once_is_limited() {
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
    fn memory_that_never_arrives_does_not_delay_other_guests() {
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
        // This many are too many.
        assert!(!searches.have_room_for(u32::MAX));
        assert_eq!(searches.next_check(now), Some(now + LATE_CHECK));
        stuck.pop();
        wait_for_one(&mut searches, now);
        assert!(searches.have_room_for(u32::MAX));
    }

    #[test]
    fn a_search_holds_no_files_of_the_process() {
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
