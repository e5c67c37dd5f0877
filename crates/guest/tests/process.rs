// SPDX-License-Identifier: GPL-2.0-or-later
//! Reading the memory of a real process.

#[path = "common/child.rs"]
mod child;
mod common;

use std::{env, fs, io::Write, process::Command, time::Duration};

use child::{Backing, FakeVmm};
use common::{ALL, FakeMemory, LINUX_7_2, Spec, boot, inflate, link_address};
use holdfast_guest::{
    BtfFiles, GuestMemory, Hva, HvaRange, Layout, MemoryError, ProcessMemory, ReadError, Reader,
    Slot, VcpuRecord,
    scan::{Effort, scan},
};

const GIB: u64 = 1 << 30;
const BLOB_AT: u64 = 0x20_0070;

/// Not a test by itself: the fake VMM's process runs it.
#[test]
fn fake_vmm_process() {
    child::run_if_asked();
}

fn load(vmm: &FakeVmm, version: &str) -> Vec<VcpuRecord> {
    let reduced = ALL.iter().find(|(v, _)| *v == version).unwrap().1;
    let blob = inflate(reduced, 600_000);
    let link_address = link_address(version);
    let blob_at = BLOB_AT as usize;
    let (mem, records) = boot(&Spec { blob: &blob, blob_at, nr_vcpus: 4, link_address });
    vmm.load(&mem);
    records
        .iter()
        .map(|r| VcpuRecord::new(r.vcpu_idx, r.steal_time_gpa, vmm.slot).unwrap())
        .collect()
}

const READS: &str = "HOLDFAST_READS";

/// Not a test by itself: reads the first word of a process, and fails if it may not.
#[test]
fn reading_process() {
    let Ok(order) = env::var(READS) else { return };
    let (pid, at) = order.split_once(' ').unwrap();
    let mem = ProcessMemory::open(pid.parse().unwrap()).unwrap();
    let at = Hva::new(at.parse().unwrap());
    assert!(mem.is_resident(at, 8).unwrap());
    assert_eq!(mem.read_u64(at).unwrap(), 0x0807_0605_0403_0201);
    println!("has read it");
}

/// A service runs as root with the capabilities of its unit, a VMM as another user.
#[test]
fn services_have_the_privileges_to_read_the_vms_of_other_users() {
    // SAFETY: the call has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: this test needs root");
        return;
    }
    let vmm = FakeVmm::start_as(Some(65534), Backing::Private, 1 << 20);
    vmm.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let order = format!("{} {}", vmm.pid(), vmm.slot.hva().get());
    let reads_with = |capabilities: &str| {
        let reader = Command::new("setpriv")
            .args(["--bounding-set", &format!("-all{capabilities}")])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "reading_process", "--nocapture"])
            .env(READS, &order)
            .output()
            .unwrap();
        String::from_utf8_lossy(&reader.stdout).contains("has read it")
    };
    for name in ["scx_holdfast", "holdfast-export", "holdfast-record"] {
        let path = format!("{}/../../packaging/systemd/{name}.service", env!("CARGO_MANIFEST_DIR"));
        let unit = fs::read_to_string(path).unwrap();
        let sets = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let named = sets
            .flat_map(|set| set.split(' '))
            .map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
        assert!(reads_with(&named.collect::<String>()), "{name}");
    }
    assert!(!reads_with(",+bpf,+perfmon,+sys_admin,+sys_ptrace"), "the VMM is root's");
}

#[test]
fn resolves_a_guest_in_another_process_without_growing_it() {
    for backing in [Backing::Private, Backing::Shared, Backing::Huge] {
        for (version, reduced) in ALL {
            let vmm = FakeVmm::start(backing, GIB);
            let records = load(&vmm, version);
            // A few pages far away, so that residency has gaps.
            for page in [0x1000_0000, 0x1000_2000, GIB - 4096] {
                vmm.write(page, &[1; 4096]);
            }
            let before = vmm.resident();
            assert!(before > 0 && before < GIB / 2, "{before}");
            let guest = Reader::new().resolve(vmm.pid(), &[vmm.slot], &records).unwrap();
            assert_eq!(*guest.layout(), Layout::from_btf(reduced).unwrap());
            let mem = ProcessMemory::open(vmm.pid()).unwrap();
            let found = scan(&mem, &[vmm.slot], Effort::Exhaustive).unwrap();
            assert_eq!(found.blobs.len(), 1);
            assert_eq!(vmm.resident(), before, "{backing:?}: the scan made the guest grow");
        }
    }
}

#[test]
fn a_file_that_fits_makes_the_exhaustive_pass_unnecessary() {
    let vmm = FakeVmm::start(Backing::Private, 64 << 20);
    let records = load(&vmm, "7.2");
    vmm.write(BLOB_AT, &vec![0; inflate(LINUX_7_2, 600_000).len()]);
    let exhausts = |reader: &Reader| {
        let attempt = reader.attempt(vmm.pid(), &[vmm.slot], &records);
        (attempt.found.map(|guest| *guest.layout()).ok(), attempt.exhaustive > Duration::ZERO)
    };
    assert_eq!(exhausts(&Reader::new()), (None, true));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(LINUX_7_2).unwrap();
    let files = [BtfFiles::load(file.path()).unwrap()];
    let layout = Layout::from_btf(LINUX_7_2).unwrap();
    assert_eq!(exhausts(&Reader::with_files(&files)), (Some(layout), false));
}

/// The documented rate is 4 GiB in a second; this test checks a quarter of both, in CPU time, so
/// that a busy machine does not matter. `examples/scan.rs` measures it with realistic contents.
#[test]
fn the_sampled_pass_covers_4_gib_in_a_second() {
    let thread_cpu = || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let vmm = FakeVmm::start(Backing::Private, GIB);
    let filler: Vec<u8> = (0..4u32 << 20).flat_map(|n| (n | 0x5500_0000).to_le_bytes()).collect();
    for at in (0..GIB).step_by(filler.len()) {
        vmm.write(at, &filler);
    }
    load(&vmm, "7.2");
    let mem = ProcessMemory::open(vmm.pid()).unwrap();
    let start = thread_cpu();
    let found = scan(&mem, &[vmm.slot], Effort::Sampled).unwrap();
    let took = thread_cpu() - start;
    assert_eq!((found.blobs.len(), found.resident_bytes), (1, GIB));
    eprintln!("1 GiB took {took:?} of CPU time");
    assert!(took < Duration::from_millis(250), "took {took:?} of CPU time for 1 GiB");
}

/// Reports every page as resident, so a scan reads all of them.
struct Careless(ProcessMemory);

impl GuestMemory for Careless {
    fn read(&self, at: Hva, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read(at, buf)
    }

    fn resident(&self, range: HvaRange, out: &mut Vec<HvaRange>) -> Result<(), MemoryError> {
        out.push(range);
        Ok(())
    }
}

/// Shows that the measure of the test above detects a careless scan.
#[test]
fn a_scan_that_ignores_residency_makes_the_guest_grow() {
    let vmm = FakeVmm::start(Backing::Shared, 64 << 20);
    vmm.write(0, &[1; 4096]);
    let before = vmm.resident();
    let mem = Careless(ProcessMemory::open(vmm.pid()).unwrap());
    scan(&mem, &[vmm.slot], Effort::Exhaustive).unwrap();
    assert!(vmm.resident() >= before + (32 << 20));
}

#[test]
fn reports_pages_as_resident_once_they_are_touched() {
    for backing in [Backing::Private, Backing::Shared, Backing::Huge] {
        let vmm = FakeVmm::start(backing, 64 << 20);
        let mem = ProcessMemory::open(vmm.pid()).unwrap();
        let runs = || {
            let mut runs = Vec::new();
            mem.resident(vmm.slot.hva_range(), &mut runs).unwrap();
            runs
        };
        assert_eq!(runs(), [], "{backing:?}");
        vmm.write(0x40_3000, &[7; 8192]);
        let touched = HvaRange::new(Hva::new(vmm.slot.hva().get() + 0x40_3000), 8192);
        assert_eq!(runs().len(), 1, "{backing:?}");
        assert!(runs()[0].contains(touched), "{backing:?}");
        if backing != Backing::Huge {
            assert_eq!(runs(), [touched], "{backing:?}");
        }
    }
}

#[test]
fn gathers_what_can_be_read_and_zeroes_the_rest() {
    let vmm = FakeVmm::start(Backing::Private, 1 << 20);
    vmm.write(0, &[5; 4096]);
    let mem = ProcessMemory::open(vmm.pid()).unwrap();
    let good = vmm.slot.hva();
    let bad = Hva::new(0x1000);
    let places: Vec<Hva> = (0..3000).map(|n| if n % 7 == 3 { bad } else { good }).collect();
    let mut buf = vec![0xff; 3000 * 64];
    mem.gather(&places, 64, &mut buf).unwrap();
    for (n, piece) in buf.chunks(64).enumerate() {
        let expected = if n % 7 == 3 { 0 } else { 5 };
        assert!(piece.iter().all(|byte| *byte == expected), "piece {n}");
    }
}

#[test]
fn a_read_of_unmapped_memory_is_an_error() {
    let vmm = FakeVmm::start(Backing::Private, 1 << 20);
    let mem = ProcessMemory::open(vmm.pid()).unwrap();
    let error = mem.read(Hva::new(0x1000), &mut [0; 16]).unwrap_err();
    assert!(matches!(error, MemoryError::NotMapped { .. }), "{error}");
    // A record with a false slot gives an error, not a panic.
    let slot = Slot::new(vmm.slot.gpa(), Hva::new(u64::MAX - (1 << 20)), 1 << 20).unwrap();
    let record = VcpuRecord::new(0, slot.gpa(), slot).unwrap();
    assert!(Reader::new().resolve(vmm.pid(), &[slot], &[record]).is_err());
}

#[test]
fn a_process_that_has_ended_is_an_error_that_says_so() {
    let mut vmm = FakeVmm::start(Backing::Private, 16 << 20);
    let records = load(&vmm, "7.2");
    let mem = ProcessMemory::open(vmm.pid()).unwrap();
    vmm.child.kill().unwrap();
    vmm.child.wait().unwrap();

    let gone = |result: Result<(), MemoryError>| {
        assert!(matches!(result, Err(MemoryError::ProcessGone { .. })), "{result:?}");
    };
    gone(mem.read(vmm.slot.hva(), &mut [0; 8]));
    gone(mem.resident(vmm.slot.hva_range(), &mut Vec::new()));
    gone(mem.gather(&[vmm.slot.hva()], 8, &mut [0; 8]));
    gone(ProcessMemory::open(vmm.pid()).map(drop));
    gone(ProcessMemory::open(u32::MAX).map(drop));
    let again = Reader::new().resolve(vmm.pid(), &[vmm.slot], &records).unwrap_err();
    assert!(matches!(again, ReadError::Memory(MemoryError::ProcessGone { .. })), "{again}");
}

#[test]
fn survives_a_process_that_ends_during_the_scan() {
    for delay_us in [0, 300, 1000, 3000, 10_000] {
        let mut vmm = FakeVmm::start(Backing::Private, 256 << 20);
        let mut filler = FakeMemory::new(64 << 20);
        filler.bytes.fill(0x55);
        vmm.load(&filler);
        let mem = ProcessMemory::open(vmm.pid()).unwrap();
        let slot = vmm.slot;
        let result = std::thread::scope(|scope| {
            let scanning = scope.spawn(|| scan(&mem, &[slot], Effort::Exhaustive).map(drop));
            // The kill may hit any moment of the scan, and the scan must end by itself.
            std::thread::sleep(Duration::from_micros(delay_us));
            vmm.child.kill().unwrap();
            vmm.child.wait().unwrap();
            scanning.join().expect("no panic")
        });
        assert!(matches!(result, Ok(()) | Err(MemoryError::ProcessGone { .. })), "{result:?}");
    }
}

#[test]
fn a_forbidden_read_is_an_error_with_advice() {
    // The credentials of this thread only: the libc wrapper would change those of all threads.
    let error = std::thread::spawn(|| {
        const NOBODY: u32 = 65_534;
        // SAFETY: takes three integers. It fails without root, and then reading is forbidden
        // anyway.
        unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        ProcessMemory::open(1).map(drop).unwrap_err()
    })
    .join()
    .unwrap();
    assert!(matches!(error, MemoryError::Permission { pid: 1, .. }), "{error}");
    assert!(error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
}

#[test]
fn a_guest_that_writes_all_the_time_does_not_confuse_the_reader() {
    let vmm = FakeVmm::start(Backing::Private, 16 << 20);
    let records = load(&vmm, "7.2");
    let layout = Layout::from_btf(LINUX_7_2).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            // CPU 0 changes its number to another CPU's, and back.
            let at = common::area_at(0) + u64::from(layout.cpu_number);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                vmm.write(at, &1u32.to_le_bytes());
                vmm.write(at, &0u32.to_le_bytes());
            }
        });
        let outcomes: Vec<_> =
            (0..50).map(|_| Reader::new().resolve(vmm.pid(), &[vmm.slot], &records)).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        outcomes
    });
    for outcome in outcomes {
        match outcome {
            Ok(guest) => assert_eq!(guest.vcpus()[0].cpu, 0),
            Err(ReadError::Stale { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
