// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the counting program and reads its counters.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::time::{Duration, Instant};

use holdfast_bpf::{BtfFiles, Discovery, Tier};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, RingBuffer, RingBufferBuilder};

use crate::clock::{self, Clock};
use crate::error::ObserverError;
use crate::guest::Guest;
use crate::histogram::Histogram;
use crate::host::{
    boot_ns, check_kvm, monotonic_ns, nodename, online_cpus, process_begin, realtime_ns, schedstat,
    thread_exists, ticks_ns,
};
use crate::names::Names;
use crate::recording::RecordedVm;
use crate::sample::{
    ByClass, ClockSamples, Counters, HistogramByClass, Holders, KvmCounters, Sample, Times,
    VcpuSample, VmSample,
};
use crate::skel::types::{hf_note, hf_vcpu_key, hf_vcpu_stats};
use crate::skel::{ObserveSkel, ObserveSkelBuilder, OpenObserveSkel};
use crate::stop;
use crate::takers::{Ledger, Taker};

/// Storage of libbpf's objects for the lifetime of the observer.
#[derive(Debug)]
pub struct Storage(MaybeUninit<OpenObject>);

impl Default for Storage {
    fn default() -> Self {
        Self(MaybeUninit::uninit())
    }
}

impl Storage {
    pub(crate) fn object(&mut self) -> &mut MaybeUninit<OpenObject> {
        &mut self.0
    }
}

/// Options of an observer.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Ticks of the sampling clock per second and CPU. With 0 there is no clock, and the cost is
    /// not known.
    pub frequency_hz: u32,
    /// Count KVM's reactions to spinning: pause-loop exits, kicks, yields.
    pub kvm_events: bool,
    /// Report every absence and sample, for a recording.
    pub notes: bool,
}

impl Options {
    /// All counters, without notes.
    pub const COUNTERS: Self = Self { frequency_hz: 199, kvm_events: true, notes: false };
    /// Preemptions alone, for measurements that nothing else may disturb.
    pub const PREEMPTIONS: Self = Self { frequency_hz: 0, kvm_events: false, notes: false };
}

/// Counts the preemptions and lock waits of vCPUs, from its attachment until it is dropped.
pub struct Observer<'obj> {
    _links: Vec<Link>,
    _clocks: Vec<Clock>,
    ring: Option<RingBuffer<'obj>>,
    notes: Rc<RefCell<Vec<hf_note>>>,
    skel: ObserveSkel<'obj>,
    discovery: Discovery<'obj>,
    /// By process and address of `struct kvm`, because either alone is soon reused.
    processes: HashMap<(u32, u64), Process>,
    /// Counters of ended VMs since the last sample; each appears in one more sample.
    ended: Vec<VmSample>,
    /// Reported preemptions and halts of each thread. When a thread has ended, they give the number
    /// of events that were not reported.
    told: HashMap<u32, u64>,
    /// Events that were never reported.
    untold: u64,
    swept_at: Instant,
    takers: Ledger,
    /// CPU and waiting time of threads before they were observed.
    unwatched: HashMap<u32, Times>,
    attached_ns: u64,
    /// Time of the host's boot, ns since 1970. It is read once, so that equal start ticks give
    /// equal times even where the clock is set.
    boot_ns: i64,
    options: Options,
}

/// Facts about the process of a VM.
#[derive(Debug, Clone)]
struct Process {
    name: Option<String>,
    uuid: Option<String>,
    /// Start of the process, in clock ticks since boot, unless it had ended before it was read.
    begin: Option<u64>,
}

impl Process {
    fn of(pid: u32) -> Self {
        let Names { name, uuid, vmm: _ } = Names::of(pid);
        Self { name, uuid, begin: process_begin(pid) }
    }
}

/// Ended VMs are kept until the next sample. This many are enough for an exporter that is not
/// scraped.
const MAX_ENDED: usize = 4096;

/// Interval between searches for counters of ended threads.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

impl<'obj> Observer<'obj> {
    /// Loads and attaches the programs. `btf` holds BTF of guest kernels, for guests that have none
    /// in memory. Needs root, or CAP_BPF, CAP_PERFMON and, where KVM is a module, CAP_SYS_ADMIN.
    pub fn attach(
        discovery: &'obj mut Storage,
        program: &'obj mut Storage,
        options: Options,
        btf: &[BtfFiles],
    ) -> Result<Self, ObserverError> {
        let bpf = |action| move |source| ObserverError::Bpf { action, source };
        check_kvm()?;
        let discovery = Discovery::attach(discovery.object(), btf)?;
        let notes_len = if options.notes { notes_len(online_cpus().len()) } else { SMALLEST_NOTES };
        let mut open = open(program.object(), options, notes_len)?;
        open.maps.vcpus.reuse_fd(discovery.vcpus()).map_err(bpf("share the vCPU map with"))?;
        let skel = open.load().map_err(bpf("load"))?;

        let mut links = Vec::new();
        let progs = &skel.progs;
        for program in [&progs.yielded, &progs.yields, &progs.sched_switch, &progs.loaded] {
            links.push(program.attach().map_err(bpf("attach"))?);
        }
        if options.kvm_events {
            for program in [&progs.on_spin, &progs.hypercall] {
                links.push(program.attach().map_err(bpf("attach"))?);
            }
        }
        let clocks = match options.frequency_hz {
            0 => Vec::new(),
            hz => clock::start(&skel.progs.clock, hz)?,
        };

        let notes = Rc::new(RefCell::new(Vec::new()));
        let ring = if options.notes {
            let sink = Rc::clone(&notes);
            let mut builder = RingBufferBuilder::new();
            let take = move |bytes: &[u8]| {
                sink.borrow_mut().extend(from_bytes::<hf_note>(bytes));
                0
            };
            builder.add(&skel.maps.notes, take).map_err(bpf("open the ring of"))?;
            Some(builder.build().map_err(bpf("open the ring of"))?)
        } else {
            None
        };
        Ok(Self {
            _links: links,
            _clocks: clocks,
            ring,
            notes,
            skel,
            discovery,
            processes: HashMap::new(),
            ended: Vec::new(),
            told: HashMap::new(),
            untold: 0,
            swept_at: Instant::now(),
            takers: Ledger::default(),
            unwatched: HashMap::new(),
            attached_ns: monotonic_ns(),
            boot_ns: boot_ns(),
            options,
        })
    }

    /// Loads all programs and drops them, without attaching them.
    pub fn try_load() -> Result<(), ObserverError> {
        check_kvm()?;
        let options = Options { notes: true, ..Options::COUNTERS };
        let mut program = Storage::default();
        let open = open(program.object(), options, SMALLEST_NOTES)?;
        let loaded = open.load();
        loaded.map(drop).map_err(|source| ObserverError::Bpf { action: "load", source })
    }

    /// Follows VMs for up to `timeout`; call it often.
    pub fn poll(&mut self, timeout: Duration) -> Result<(), ObserverError> {
        let mut ended = Vec::new();
        for kvm in self.discovery.poll(timeout)? {
            let _ = self.skel.maps.vm_states.delete(&kvm.to_ne_bytes());
            let map = &self.skel.maps.siblings;
            let of_vm =
                |key: &Vec<u8>| from_bytes::<hf_vcpu_key>(key).is_some_and(|key| key.kvm == kvm);
            for key in map.keys().filter(of_vm).collect::<Vec<_>>() {
                // The entry may be gone already.
                let _ = map.delete(&key);
            }
            ended.push(kvm);
        }
        self.bury()?;
        for kvm in ended {
            self.takers.forget(&self.skel.maps.takers, kvm);
        }
        let Self { discovery, processes, unwatched, .. } = self;
        for (kvm, vm) in discovery.vms() {
            processes.entry((vm.pid, *kvm)).or_insert_with(|| Process::of(vm.pid));
            for vcpu in vm.vcpus.values() {
                if let Entry::Vacant(unknown) = unwatched.entry(vcpu.tid)
                    && let Some(times) = schedstat(vm.pid, vcpu.tid)
                {
                    unknown.insert(times);
                }
            }
        }
        // Only recordings sweep here; other outputs sweep with each sample.
        if self.ring.is_some() && self.swept_at.elapsed() > SWEEP_INTERVAL {
            let counted = self.counters()?;
            self.sweep(counted.keys());
            self.takers()?;
        }
        Ok(())
    }

    /// Keeps the counters of VMs that have just ended for one more sample, and makes room for
    /// others. Counters of threads that run on are left for their next VM.
    fn bury(&mut self) -> Result<(), ObserverError> {
        let mut takers = HashMap::new();
        if self.ring.is_none() && !self.discovery.ended().is_empty() {
            takers = self.takers()?;
        }
        let map = &self.skel.maps.stats;
        for (kvm, vm) in self.discovery.ended() {
            let process = self.processes.get(&(vm.pid, *kvm)).cloned();
            let mut vcpus = Vec::new();
            for (number, vcpu) in &vm.vcpus {
                let key = vcpu.tid.to_ne_bytes();
                let found = map.lookup(&key, MapFlags::ANY).map_err(not_read)?;
                let counted = found.as_deref().and_then(from_bytes::<hf_vcpu_stats>);
                let Some(counted) = counted.filter(|c| c.kvm == *kvm && !thread_exists(vcpu.tid))
                else {
                    continue;
                };
                // The entry may be gone already.
                let _ = map.delete(&key);
                vcpus.push(VcpuSample {
                    vcpu: *number,
                    tid: vcpu.tid,
                    readable: vm.is_readable() && vcpu.record.is_some(),
                    // The thread's times cannot be read after its end.
                    counters: counters_of(&counted, None, vm.tier(), self.options),
                });
            }
            if self.ring.is_some() || vcpus.is_empty() {
                continue;
            }
            let (name, uuid) = process.map(|process| (process.name, process.uuid)).unzip();
            let (name, uuid) = (name.flatten(), uuid.flatten());
            let guest = Guest::of(vm);
            let takers = takers.remove(kvm).unwrap_or_default();
            let ended = VmSample { pid: vm.pid, name, uuid, guest, ended: true, vcpus, takers };
            if self.ended.len() < MAX_ENDED {
                self.ended.push(ended);
            } else {
                let untold = |vcpu: &VcpuSample| untold(&self.told, vcpu.tid, &vcpu.counters);
                self.untold += ended.vcpus.iter().map(untold).sum::<u64>();
            }
        }
        Ok(())
    }

    /// Removes the counters of these threads, if they have ended.
    fn sweep<'a>(&mut self, tids: impl Iterator<Item = &'a u32>) {
        self.swept_at = Instant::now();
        let vms = self.discovery.vms().values();
        let known: HashSet<u32> =
            vms.flat_map(|vm| vm.vcpus.values()).map(|vcpu| vcpu.tid).collect();
        for tid in tids.filter(|tid| !known.contains(*tid) && !thread_exists(**tid)) {
            let _ = self.skel.maps.stats.delete(&tid.to_ne_bytes());
        }
    }

    /// Follows VMs until all running ones can be read, for two seconds at most, so that the
    /// counters from then on are complete.
    pub(crate) fn settle(&mut self) -> Result<(), ObserverError> {
        const LONGEST: Duration = Duration::from_secs(2);
        /// A running vCPU is loaded many times a second.
        const QUIET: Duration = Duration::from_millis(300);
        let start = Instant::now();
        let (mut known, mut quiet_since) = (0, start);
        while start.elapsed() < LONGEST && !stop::is_asked() {
            self.poll(Duration::from_millis(50))?;
            let vcpus: usize = self.discovery.vms().values().map(|vm| vm.vcpus.len()).sum();
            if vcpus != known {
                (known, quiet_since) = (vcpus, Instant::now());
            }
            let all_known = self.discovery.vms().values().all(|vm| vm.tier() != Tier::None);
            if known > 0 && all_known && quiet_since.elapsed() > QUIET {
                break;
            }
        }
        Ok(())
    }

    /// The VMs known, by the address of their `struct kvm`, as recordings describe them.
    pub(crate) fn vms(&mut self) -> impl Iterator<Item = (u64, RecordedVm)> {
        self.forget_ended();
        let Self { discovery, processes, boot_ns, .. } = self;
        discovery.vms().iter().map(|(kvm, vm)| {
            let process = processes.entry((vm.pid, *kvm)).or_insert_with(|| Process::of(vm.pid));
            let Process { name, uuid, begin } = process.clone();
            let begin_ns = begin.map(|ticks| *boot_ns + ticks_ns(ticks));
            let (pid, guest) = (vm.pid, Guest::of(vm));
            (*kvm, RecordedVm { pid, process: pid, begin_ns, name, uuid, guest, ended: false })
        })
    }

    /// Notes taken since the last call.
    pub(crate) fn take_notes(&mut self) -> Result<Vec<hf_note>, ObserverError> {
        if let Some(ring) = &self.ring {
            ring.consume()
                .map_err(|source| ObserverError::Bpf { action: "read the notes of", source })?;
        }
        Ok(self.notes.take())
    }

    /// The counters so far.
    pub fn sample(&mut self) -> Result<Sample, ObserverError> {
        let mut counted = self.counters()?;
        let mut vms = Vec::new();
        self.forget_ended();
        let mut takers = self.takers()?;
        for (kvm, vm) in self.discovery.vms() {
            let vcpus = vm.vcpus.iter().map(|(number, vcpu)| {
                // A vCPU without counters has had nothing to count.
                let c = counted.remove(&vcpu.tid).filter(|c| c.kvm == *kvm).unwrap_or_default();
                let times = schedstat(vm.pid, vcpu.tid);
                let times =
                    times.map(|now| now.since(self.unwatched.entry(vcpu.tid).or_insert(now)));
                VcpuSample {
                    vcpu: *number,
                    tid: vcpu.tid,
                    readable: vm.is_readable() && vcpu.record.is_some(),
                    counters: counters_of(&c, times, vm.tier(), self.options),
                }
            });
            let vcpus = vcpus.collect();
            let process = self.processes.entry((vm.pid, *kvm));
            let Process { name, uuid, .. } = process.or_insert_with(|| Process::of(vm.pid)).clone();
            let guest = Guest::of(vm);
            let takers = takers.remove(kvm).unwrap_or_default();
            vms.push(VmSample { pid: vm.pid, name, uuid, guest, ended: false, vcpus, takers });
        }
        vms.append(&mut self.ended);
        vms.sort_by_key(|vm| vm.pid);
        // All outputs identify VMs by their processes.
        vms.dedup_by(|next, vm| {
            let is_same = next.pid == vm.pid;
            if is_same {
                vm.vcpus.append(&mut next.vcpus);
                vm.takers.append(&mut next.takers);
                if vm.guest.kernel.is_none() && next.guest.kernel.is_some() {
                    vm.guest = std::mem::take(&mut next.guest);
                }
                vm.ended &= next.ended;
            }
            is_same
        });
        // The rest belongs to threads that have ended, or that are not known yet.
        for (tid, c) in counted.iter().filter(|(tid, _)| !thread_exists(**tid)) {
            self.untold +=
                untold(&self.told, *tid, &counters_of(c, None, Tier::None, self.options));
        }
        self.sweep(counted.keys());
        let vcpus = vms.iter().flat_map(|vm| &vm.vcpus);
        self.told = vcpus.map(|vcpu| (vcpu.tid, events(&vcpu.counters))).collect();

        Ok(Sample {
            t_ns: realtime_ns(),
            interval_ns: monotonic_ns() - self.attached_ns,
            host: Some(nodename()),
            lost_events: self.lost_events(),
            vms,
        })
    }

    /// What took the CPU of each VM's vCPUs, by its `struct kvm`.
    fn takers(&mut self) -> Result<HashMap<u64, Vec<Taker>>, ObserverError> {
        let ended = self.discovery.ended().iter().map(|(kvm, vm)| (*kvm, vm));
        let running = self.discovery.vms().iter().map(|(kvm, vm)| (*kvm, vm));
        let vms = ended.chain(running).map(|(kvm, vm)| (kvm, vm.pid)).collect();
        let labels = self.processes.iter().map(|((pid, _), process)| {
            (*pid, process.name.clone().unwrap_or_else(|| format!("pid {pid}")))
        });
        self.takers.read(&self.skel.maps.takers, &vms, &labels.collect())
    }

    /// Drops the data of VMs and threads that have ended.
    fn forget_ended(&mut self) {
        let vms = self.discovery.vms();
        self.processes.retain(|(pid, kvm), _| vms.get(kvm).is_some_and(|vm| vm.pid == *pid));
        let vcpus = vms.values().flat_map(|vm| vm.vcpus.values());
        let alive: HashSet<u32> = vcpus.map(|vcpu| vcpu.tid).collect();
        self.unwatched.retain(|tid, _| alive.contains(tid));
    }

    /// Switches and notes that were not counted or not reported, and vCPUs that were not tracked.
    pub fn lost_events(&self) -> u64 {
        let bss = self.skel.maps.bss_data.as_deref();
        let in_kernel = bss.map_or(0, |bss| bss.nr_lost + bss.nr_lost_notes);
        in_kernel + self.discovery.losses().1 + self.untold
    }

    fn counters(&self) -> Result<BTreeMap<u32, hf_vcpu_stats>, ObserverError> {
        let map = &self.skel.maps.stats;
        let mut counted = BTreeMap::new();
        for key in map.keys() {
            let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(not_read)? else { continue };
            if let (Some(tid), Some(value)) = (from_bytes::<u32>(&key), from_bytes(&value)) {
                counted.insert(tid, value);
            }
        }
        Ok(counted)
    }
}

/// Loads the program that finds vCPUs and drops it, without attaching it.
pub fn try_discovery() -> Result<(), ObserverError> {
    check_kvm()?;
    Ok(Discovery::try_load()?)
}

/// Size of a ring that stays empty.
const SMALLEST_NOTES: u32 = 4096;

/// The programs and maps for these options.
fn open(
    storage: &mut MaybeUninit<OpenObject>,
    options: Options,
    notes_len: u32,
) -> Result<OpenObserveSkel<'_>, ObserverError> {
    let bpf = |action| move |source| ObserverError::Bpf { action, source };
    let mut open = ObserveSkelBuilder::default().open(storage).map_err(bpf("open"))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.takes_notes = options.notes;
    }
    open.maps.notes.set_max_entries(notes_len).map_err(bpf("size the maps of"))?;
    let progs = &mut open.progs;
    for program in [&mut progs.on_spin, &mut progs.hypercall] {
        program.set_autoload(options.kvm_events);
    }
    progs.clock.set_autoload(options.frequency_hz > 0);
    Ok(open)
}

pub(crate) fn not_read(source: libbpf_rs::Error) -> ObserverError {
    ObserverError::Bpf { action: "read the counters of", source }
}

/// Number of a vCPU's events.
fn events(c: &Counters) -> u64 {
    c.preemptions.total() + c.lock_halts
}

/// Events that have not been reported yet.
fn untold(told: &HashMap<u32, u64>, tid: u32, c: &Counters) -> u64 {
    events(c).saturating_sub(told.get(&tid).copied().unwrap_or(0))
}

/// Size of the ring of notes: a power of two, and 2 MiB for each CPU, as far as that is sensible.
fn notes_len(cpus: usize) -> u32 {
    (cpus.clamp(1, 256).next_power_of_two() as u32) << 21
}

fn counters_of(c: &hf_vcpu_stats, times: Option<Times>, tier: Tier, options: Options) -> Counters {
    Counters {
        times,
        holders: Holders::of(Some(tier)),
        preemptions: ByClass(c.nr),
        offcpu_ns: ByClass(c.away_ns),
        offcpu_over_cap: ByClass(c.nr_long),
        offcpu_hist: HistogramByClass(c.away_hist.map(Histogram)),
        resumed: c.nr_resumed,
        siblings_waiting: c.nr_siblings_waiting,
        lock_halts: c.nr_lock_halts,
        lock_halt_ns: c.lock_halt_ns,
        kvm: options.kvm_events.then_some(KvmCounters {
            pause_exits: c.nr_pause_exits,
            kicks: c.nr_kicks,
            yield_hypercalls: c.nr_yield_hypercalls,
            yields_tried: c.nr_yields_tried,
            yields_done: c.nr_yields_done,
            yield_ns: c.yield_ns,
        }),
        clock: (options.frequency_hz > 0).then_some(ClockSamples {
            samples: ByClass(c.samples),
            samples_holder_off: c.samples_holder_off,
            samples_head_off: c.samples_head_off,
        }),
    }
}

/// Reads a type of `observe.h` from the bytes that BPF wrote. `T` is one of the generated
/// `#[repr(C)]` types, or an integer.
pub(crate) fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, the read is unaligned, and the types consist of integers only.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
