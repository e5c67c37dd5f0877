// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_holdfast`: loads the scheduler, follows the guests of the host, and reports decisions.

mod bpf_intf;
mod bpf_skel;
mod cookies;
mod cookies_skel;
mod kernel_log;
mod monitor;
mod opts;
mod preflight;
mod stats;
mod stderr;
mod waker;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::CommandFactory;
use crossbeam::channel::{Receiver, Sender, bounded, select};
use holdfast_args::{SKIPPED, VERSION};
use holdfast_bpf::service::{self, Watchdog};
use holdfast_bpf::{Discovery, Tier, with_last_words};
use holdfast_checks::{Host, MAX_CPUS, MAX_LLCS, Purpose};
use libbpf_rs::{MapCore, MapFlags, OpenObject, PrintLevel, set_print};
use log::{debug, info, warn};
use scx_stats::prelude::*;
use scx_utils::{
    NR_CPU_IDS, ScxExitKind, Topology, UEI_DUMP_PTR_MUTEX, UserExitInfo, compat, scx_ops_attach,
    scx_ops_load, scx_ops_open, uei_exited,
};

use crate::bpf_skel::{BpfSkel, BpfSkelBuilder};
use crate::cookies::NoCookies;
use crate::kernel_log::KernelLog;
use crate::opts::Opts;
use crate::preflight::Refusal;
use crate::stats::{Decisions, Metrics, Totals, VmNames};
use crate::waker::Waker;

const SCHEDULER_NAME: &str = "scx_holdfast";

/// How often to check whether the kernel has ended the scheduler: there is no event for it.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long, and how often, to try to read the topology: it fails while a CPU goes offline.
const TOPOLOGY_LIMIT: Duration = Duration::from_secs(2);
const TOPOLOGY_RETRY: Duration = Duration::from_millis(100);

/// Kernel functions that queue the tasks of a local DSQ again in any context.
const REENQUEUE_FROM_ANYWHERE: [&str; 2] = ["scx_bpf_reenqueue_local___v2", "scx_bpf_dsq_reenq"];

const NO_VCPUS: &str =
    "cannot find vCPUs (holdfast doctor may know why; --no-guest-knowledge goes without)";

// The checks are built without BPF.
const _: () = assert!(MAX_CPUS == bpf_intf::HF_MAX_CPUS as usize);
const _: () = assert!(MAX_LLCS == bpf_intf::HF_MAX_LLCS as usize);

/// Memory of the BPF objects.
struct Objects {
    scheduler: MaybeUninit<OpenObject>,
    discovery: MaybeUninit<OpenObject>,
    cookies: MaybeUninit<OpenObject>,
}

impl Default for Objects {
    fn default() -> Self {
        let [scheduler, discovery, cookies] = [const { MaybeUninit::uninit() }; 3];
        Self { scheduler, discovery, cookies }
    }
}

struct Scheduler<'a> {
    skel: BpfSkel<'a>,
    struct_ops: Option<libbpf_rs::Link>,
    discovery: Option<Discovery<'a>>,
    /// Dropped after `struct_ops`.
    no_cookies: Option<NoCookies<'a>>,
    vm_names: VmNames,
    stats_server: StatsServer<(), Totals>,
    /// From the moment it was to be enabled.
    kernel_log: KernelLog,
}

impl<'a> Scheduler<'a> {
    /// Loads it, which takes seconds; none if `shutdown` is set meanwhile.
    fn init(opts: &Opts, objects: &'a mut Objects, shutdown: &AtomicBool) -> Result<Option<Self>> {
        let host = Host::this();
        preflight::check(&host, purpose(opts))?;
        info!("{SCHEDULER_NAME} {VERSION}");

        let discovery = if opts.no_guest_knowledge {
            None
        } else {
            Some(
                overhear(opts, || Discovery::attach(&mut objects.discovery, &opts.btf))
                    .context(NO_VCPUS)?,
            )
        };
        let vcpus = discovery.as_ref().map(Discovery::vcpus);
        let mut skel = overhear(opts, || load(opts, &mut objects.scheduler, vcpus))?;
        if shutdown.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let no_cookies = NoCookies::enforce(&host, &mut objects.cookies)?;
        let kernel_log = KernelLog::open();
        let attached = scx_ops_attach!(skel, holdfast_ops);
        let struct_ops = Some(attached.map_err(|error| kernel_log.quote(error))?);
        let stats_server = StatsServer::new(stats::server_data()).launch()?;

        let vm_names = VmNames::default();
        Ok(Some(Self {
            skel,
            struct_ops,
            discovery,
            no_cookies,
            vm_names,
            stats_server,
            kernel_log,
        }))
    }

    /// Sum over CPUs of one of the counters of `bpf/intf.h`.
    fn counter(&self, index: u32) -> Result<u64> {
        let per_cpu = self
            .skel
            .maps
            .stats
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .context("cannot read the counters")?
            .unwrap_or_default();
        Ok(per_cpu
            .iter()
            .filter_map(|bytes| bytes.as_slice().try_into().ok().map(u64::from_ne_bytes))
            .sum())
    }

    fn totals(&mut self) -> Result<Totals> {
        let counters: Vec<u64> = (0..bpf_intf::hf_stat_HF_NR_STATS)
            .map(|index| self.counter(index))
            .collect::<Result<_>>()?;
        let mut metrics = Metrics::read(|index| counters[index as usize]);
        let mut vms = BTreeMap::new();
        let known = self.discovery.iter().flat_map(Discovery::vms);
        for (kvm, vm) in known {
            match vm.tier() {
                Tier::Queue => metrics.nr_vms_queue += 1,
                Tier::Irql => metrics.nr_vms_irql += 1,
                Tier::None => metrics.nr_vms_unreadable += 1,
                _ => metrics.nr_vms_readable += 1,
            }
            let found = self.skel.maps.vm_ctxs.lookup(&kvm.to_ne_bytes(), MapFlags::ANY);
            // A VM that has never been preempted has no entry.
            if let Some(bytes) = found.context("cannot read the counters of a VM")? {
                let counts = vm_counts(&bytes);
                let decisions = Decisions::read(|i| counts.get(i as usize).copied().unwrap_or(0));
                let (nr, name) = self.vm_names.of(*kvm, vm.pid);
                vms.insert(nr, (name, decisions));
            }
        }
        Ok(Totals { metrics, vms })
    }

    /// Serves until `shutdown`, or until the kernel ends the scheduler.
    fn run(&mut self, shutdown: &AtomicBool, waker: &Waker) -> Result<UserExitInfo> {
        let (answers, requests) = self.stats_server.channels();
        let requested = AtomicUsize::new(0);
        // Dropped at the end, which ends the thread.
        let (stop, stopped) = bounded(0);
        std::thread::scope(|scope| {
            scope.spawn(|| count_requests(&requests, &stopped, &requested, waker));
            let _stop: Sender<()> = stop;
            let mut watchdog = Watchdog::of_this_process();
            while !shutdown.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
                self.sleep(waker)?;
                watchdog.alive();
                self.follow_vms()?;
                if let Some(no_cookies) = &mut self.no_cookies {
                    no_cookies.report();
                }
                for _ in 0..requested.swap(0, Ordering::Relaxed) {
                    // A failure costs the client an answer, and not the host its scheduler.
                    let sent = self.totals().and_then(|totals| Ok(answers.send(totals)?));
                    sent.unwrap_or_else(|error| warn!("cannot answer with statistics: {error:#}"));
                }
            }
            anyhow::Ok(())
        })?;

        let _ = self.struct_ops.take();
        self.ended()
    }

    /// Logs why it has ended; an error unless it was asked to.
    fn ended(&self) -> Result<UserExitInfo> {
        let uei = self.skel.maps.data_data.as_ref().context("the BPF object has no data")?.uei;
        // As uei_read!() does, which panics on text that is not UTF-8. Names of tasks need not be.
        let has = |field| compat::struct_has_field("scx_exit_info", field).unwrap_or(false);
        let code = if has("exit_code") { &raw const uei.exit_code } else { std::ptr::null() };
        let cpu = if has("exit_cpu") { &raw const uei.exit_cpu } else { std::ptr::null() };
        let no_text = c"".as_ptr();
        let kind = &raw const uei.kind;
        let info = UserExitInfo::new(kind, code, cpu, no_text, no_text, std::ptr::null());
        // As info.report() does, which waits for a reader, and panics without one.
        let text = |chars: &[c_char]| {
            let bytes: Vec<u8> = chars.iter().map(|c| c.cast_unsigned()).collect();
            CStr::from_bytes_until_nul(&bytes)
                .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
        };
        let (reason, message) = (text(&uei.reason), text(&uei.msg));
        let message = if message.is_empty() { message } else { format!(" ({message})") };
        let cpu = info.exit_cpu().map(|cpu| format!(" on CPU {cpu}")).unwrap_or_default();
        let why = format!("{reason}{message}{cpu}");
        let dump = UEI_DUMP_PTR_MUTEX.lock().unwrap_or_else(PoisonError::into_inner).ptr;
        if !dump.is_null() {
            // SAFETY: the BPF object is loaded, and ends its text with a zero.
            let dump = unsafe { CStr::from_ptr(dump) }.to_string_lossy();
            if !dump.is_empty() {
                writeln!(stderr::Stderr, "{dump}")?;
            }
        }
        // SysRq-S as well: the operator pressed the keys on purpose.
        let was_asked_for = uei.kind < ScxExitKind::Error as i32;
        ensure!(was_asked_for, "ended by the kernel: {why}");
        info!("ended: {why}");
        Ok(info)
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, waker: &Waker) -> Result<()> {
        let due = self.discovery.as_ref().and_then(Discovery::next_due);
        let due = due.map_or(EXIT_CHECK_INTERVAL, |due| {
            due.saturating_duration_since(Instant::now()).min(EXIT_CHECK_INTERVAL)
        });
        waker.sleep(self.discovery.as_ref().map(AsFd::as_fd), due).context("cannot wait for events")
    }

    /// Follows new VMs, and forgets those that have ended.
    fn follow_vms(&mut self) -> Result<()> {
        let Some(discovery) = &mut self.discovery else { return Ok(()) };
        discovery.process()?;
        if discovery.ended().is_empty() {
            return Ok(());
        }
        let processes = discovery.vms().values().map(|vm| vm.pid).collect();
        self.vm_names.forget(discovery.ended().iter().map(|(kvm, _)| *kvm), &processes);
        let vm_ctxs = &self.skel.maps.vm_ctxs;
        // The counters of a VM are not those of another VM at its address. The threads of a VM run
        // on for a moment after its end, and may have made a new entry for it.
        let is_over = |key: &Vec<u8>| {
            let kvm = <[u8; 8]>::try_from(key.as_slice()).map(u64::from_ne_bytes);
            kvm.is_ok_and(|kvm| {
                let has_ended = discovery.ended().iter().any(|(ended, _)| *ended == kvm);
                has_ended || !discovery.vms().contains_key(&kvm)
            })
        };
        for key in vm_ctxs.keys().filter(is_over).collect::<Vec<_>>() {
            let _ = vm_ctxs.delete(&key);
        }
        Ok(())
    }
}

/// The purpose of loading it.
fn purpose(opts: &Opts) -> Purpose {
    if opts.no_guest_knowledge { Purpose::BaseOnly } else { Purpose::Guests }
}

/// Loads the scheduler into the kernel, which does not enable it. Without the map of vCPU threads
/// it finds no vCPU.
fn load<'a>(
    opts: &Opts,
    object: &'a mut MaybeUninit<OpenObject>,
    vcpus: Option<BorrowedFd<'_>>,
) -> Result<BpfSkel<'a>> {
    let params = opts.params();
    let skel_builder = BpfSkelBuilder::default();
    let open_opts = opts.libbpf.clone().into_bpf_open_opts();
    let mut skel = scx_ops_open!(skel_builder, object, holdfast_ops, open_opts)?;
    // After the object is opened: from then on the kernel reports CPUs that come or go.
    let topo = read_topology()?;

    let bss = skel.maps.bss_data.as_mut().context("the BPF object has no variables")?;
    bss.params = bpf_skel::types::hf_params {
        slice_ns: params.slice_ns,
        grace_max_ns: params.grace_max_ns,
        grace_step_ns: params.grace_step_ns,
        grace_budget_max_ns: params.grace_budget_max_ns,
        grace_share_permille: params.grace_share_permille,
        resume_boost_permille: params.resume_boost_permille,
        spin_ns: params.spin_ns,
        probe_ns: params.probe_ns,
        wakeup_margin_permille: params.wakeup_margin_permille,
        sibling_margin_permille: params.sibling_margin_permille,
    };
    let rodata = skel.maps.rodata_data.as_mut().context("the BPF object has no constants")?;
    rodata.guest_knowledge = !opts.no_guest_knowledge;
    rodata.grace_enabled = !opts.no_grace && !opts.no_guest_knowledge;
    rodata.resume_first_enabled = !opts.no_resume_first && !opts.no_guest_knowledge;
    rodata.directed_yield_enabled = !opts.no_directed_yield;
    rodata.waiters_enabled = !opts.no_waiters && !opts.no_guest_knowledge;

    ensure!(
        *NR_CPU_IDS <= rodata.cpu_llc.len(),
        "this host has {} CPU ids, more than the {} that {SCHEDULER_NAME} can handle",
        *NR_CPU_IDS,
        rodata.cpu_llc.len()
    );
    rodata.nr_cpu_ids = *NR_CPU_IDS as u32;
    let llcs: Vec<usize> = topo.all_llcs.keys().copied().collect();
    ensure!(
        llcs.len() <= bpf_intf::HF_MAX_LLCS as usize,
        "this host has {} last level caches, more than the {} that {SCHEDULER_NAME} can handle",
        llcs.len(),
        bpf_intf::HF_MAX_LLCS
    );
    rodata.nr_llcs = llcs.len().max(1) as u32;
    for (id, cpu) in &topo.all_cpus {
        if let Some(index) = llcs.iter().position(|llc| *llc == cpu.llc_id) {
            rodata.cpu_llc[*id] = index as u32;
            rodata.llc_node[index] = cpu.node_id as i32;
        }
    }
    for llc in topo.all_llcs.values() {
        set_ring(&mut rodata.llc_ring, llc.all_cpus.keys().copied());
    }
    for core in topo.all_cores.values() {
        set_ring(&mut rodata.core_ring, core.cpus.keys().copied());
    }

    if let Some(vcpus) = vcpus {
        skel.maps.vcpus.reuse_fd(vcpus).context("cannot share the vCPU map")?;
    }
    skel.struct_ops.holdfast_ops_mut().exit_dump_len = opts.exit_dump_len;
    // ALLOW_QUEUED_WAKEUP: the waking CPU need not take the run queue's lock.
    // ENQ_EXITING: else a task that exits passes by all DSQs, and freeing its memory may take
    // seconds. ENQ_LAST: else a task alone on its CPU could not migrate to an idle core.
    // ENQ_MIGRATION_DISABLED: else a task that may not migrate for a moment has a slice of the
    // kernel's, of 20 ms, before all others. KEEP_BUILTIN_IDLE: the kernel goes on to track idle
    // CPUs beside ops.update_idle.
    skel.struct_ops.holdfast_ops_mut().flags = *compat::SCX_OPS_ALLOW_QUEUED_WAKEUP
        | *compat::SCX_OPS_ENQ_EXITING
        | *compat::SCX_OPS_ENQ_LAST
        | *compat::SCX_OPS_ENQ_MIGRATION_DISABLED
        | *compat::SCX_OPS_KEEP_BUILTIN_IDLE;
    // Linux 6.19 deprecates ops.cpu_release and has the first of these, Linux 7.1 the second.
    if REENQUEUE_FROM_ANYWHERE.iter().any(|name| compat::ksym_exists(name).unwrap_or(false)) {
        skel.struct_ops.holdfast_ops_mut().cpu_release = std::ptr::null_mut();
        skel.progs.holdfast_sched_switch.set_autoload(true);
    }
    // Older kernels: groups keep the `cpu.idle` that they had when the scheduler was loaded.
    if !compat::struct_has_field("sched_ext_ops", "cgroup_set_idle")? {
        skel.struct_ops.holdfast_ops_mut().cgroup_set_idle = std::ptr::null_mut();
    }

    scx_ops_load!(skel, holdfast_ops, uei)
}

/// Does `work`, and adds libbpf's last words to its error. With `--verbose` all of them are logged.
fn overhear<T, E: Into<anyhow::Error>>(
    opts: &Opts,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T> {
    let (done, words) = if opts.verbose { (work(), String::new()) } else { with_last_words(work) };
    done.map_err(|error| {
        let error = error.into();
        if words.is_empty() {
            error
        } else {
            anyhow!("{}. libbpf: {words}", preflight::chain(&error))
        }
    })
}

/// Checks whether the scheduler could be loaded, and changes nothing.
fn check(opts: &Opts) -> Result<()> {
    let host = Host::this();
    preflight::check(&host, purpose(opts))?;
    if !opts.no_guest_knowledge {
        overhear(opts, Discovery::try_load).context(NO_VCPUS)?;
    }
    let mut object = MaybeUninit::uninit();
    overhear(opts, || load(opts, &mut object, None).map(drop))?;
    NoCookies::try_load(&host)?;
    writeln!(
        std::io::stdout(),
        "{SCHEDULER_NAME} can run here: every check passes, and the kernel takes its programs"
    )
    .context(NO_STDOUT)
}

/// Counts requests for statistics, and wakes the main loop, which answers them: it cannot sleep on
/// a channel together with file descriptors.
fn count_requests(
    requests: &Receiver<()>,
    stopped: &Receiver<()>,
    requested: &AtomicUsize,
    waker: &Waker,
) {
    loop {
        select! {
            recv(requests) -> request => match request {
                Ok(()) => {
                    requested.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                }
                Err(_) => return,
            },
            recv(stopped) -> _ => return,
        }
    }
}

/// The CPUs of this host that are online.
fn read_topology() -> Result<Topology> {
    let until = Instant::now() + TOPOLOGY_LIMIT;
    loop {
        match Topology::new() {
            Err(error) if Instant::now() < until => {
                debug!("cannot read the topology of this host yet: {error:#}");
                std::thread::sleep(TOPOLOGY_RETRY);
            }
            read => return read.context("cannot read the topology of this host"),
        }
    }
}

/// After each of these CPUs comes the next, and after the last the first.
fn set_ring(ring: &mut [u32], cpus: impl Iterator<Item = usize> + Clone) {
    for (cpu, next) in cpus.clone().zip(cpus.clone().skip(1).chain(cpus)) {
        ring[cpu] = next as u32;
    }
}

/// The counters at the end of a `struct hf_vm_ctx`.
fn vm_counts(bytes: &[u8]) -> Vec<u64> {
    let counts = bytes.get(std::mem::offset_of!(bpf_intf::hf_vm_ctx, counts)..).unwrap_or_default();
    let words = counts.chunks_exact(size_of::<u64>());
    words.filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect()
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        info!("Unregister {SCHEDULER_NAME} scheduler");
    }
}

/// Where the log goes: standard error, with a priority for each line if that is the journal.
struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = record.level();
        let line = match service::priority(level) {
            "" => format!("[{level}] {}\n", record.args()),
            _ => service::with_priority(level, record.args()),
        };
        let _ = stderr::Stderr.write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

fn init_logging(opts: &Opts) -> Result<()> {
    log::set_logger(&Log)?;
    log::set_max_level(match (opts.verbose, opts.quiet) {
        (true, _) => log::LevelFilter::Debug,
        (_, true) => log::LevelFilter::Warn,
        _ => log::LevelFilter::Info,
    });
    // Errors are reported in a sentence; libbpf's own lines are for --verbose.
    set_print(if opts.verbose { Some((PrintLevel::Debug, log_libbpf)) } else { None });
    Ok(())
}

/// Logs lines of libbpf like all others: libbpf itself, and libbpf-rs, would wait for a reader.
fn log_libbpf(level: PrintLevel, message: String) {
    let level = match level {
        PrintLevel::Warn => log::Level::Warn,
        PrintLevel::Info => log::Level::Info,
        PrintLevel::Debug => log::Level::Debug,
    };
    log::log!(level, "{}", message.trim_end());
}

fn main() -> ExitCode {
    let opts = match Opts::read() {
        Ok(opts) => opts,
        Err(code) => return code,
    };
    match run(&opts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_has_left(&error) => holdfast_signals::end_by_closed_pipe(),
        Err(error) => {
            // An error that cannot be written changes nothing about the exit code.
            let line = format!("{SCHEDULER_NAME}: {}", preflight::chain(&error));
            let line = service::error_line(line);
            let _ = stderr::Stderr.write_all(line.as_bytes());
            if error.is::<Refusal>() { ExitCode::from(SKIPPED) } else { ExitCode::FAILURE }
        }
    }
}

/// Has the reader of standard output left?
fn reader_has_left(error: &anyhow::Error) -> bool {
    let io = error.root_cause().downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

const NO_STDOUT: &str = "cannot write to standard output";
const NO_HANDLER: &str = "cannot install the signal handler";

fn run(opts: &Opts) -> Result<()> {
    if opts.help_stats {
        let described = stats::server_data().describe_meta(&mut std::io::stdout(), None);
        return described.context(NO_STDOUT);
    }
    if let Some(share) = &opts.manual {
        return holdfast_manual::write(Opts::command(), 8, share)
            .with_context(|| format!("cannot write the man page into {}", share.display()));
    }
    init_logging(opts)?;

    if let Some(interval) = opts.monitor {
        // Wherever it waits.
        ctrlc::set_handler(|| std::process::exit(0)).context(NO_HANDLER)?;
        return monitor::watch(interval);
    }
    if opts.check {
        return check(opts).map_err(preflight::explain);
    }
    let shutdown = Arc::new(AtomicBool::new(false));
    let waker = Arc::new(Waker::new().context("cannot make an eventfd")?);
    let on_signal = (Arc::clone(&shutdown), Arc::clone(&waker));
    ctrlc::set_handler(move || {
        on_signal.0.store(true, Ordering::Relaxed);
        on_signal.1.wake();
    })
    .context(NO_HANDLER)?;

    if let Some(interval) = opts.stats {
        let until = Arc::clone(&shutdown);
        std::thread::spawn(move || match stats::monitor(interval, until) {
            Ok(()) => debug!("the monitor ended"),
            Err(err) => warn!("the monitor ended: {err:#}"),
        });
    }

    while !shutdown.load(Ordering::Relaxed) {
        let mut objects = Objects::default();
        let loaded = Scheduler::init(opts, &mut objects, &shutdown);
        let Some(mut scheduler) = loaded.map_err(preflight::explain)? else { break };
        // The kernel may have accepted a scheduler that it could not enable, and ended it already.
        let is_enabled = !uei_exited!(&scheduler.skel, uei);
        if is_enabled {
            service::ready();
        }
        let ended = scheduler.run(&shutdown, &waker);
        let ended = ended.map_err(|error| match is_enabled {
            true => error,
            false => scheduler.kernel_log.quote(error),
        });
        if !ended?.should_restart() {
            break;
        }
        info!("CPUs came or went: starting again");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
