// SPDX-License-Identifier: GPL-2.0-or-later
//! Functions that the scheduler calls: kfuncs by their names in the scx headers, and BPF helpers by
//! those of `shim/model.h`. Each call counts, and is a point at which other CPUs may come in.

use std::cell::Cell;

use crate::bpf::MapDesc;
use crate::ext::Ext;
use crate::kernel::Kernel;
use crate::layout as l;

thread_local! {
    static KERNEL: Cell<*const Kernel> = const { Cell::new(std::ptr::null()) };
}

/// While it lives, calls of the scheduler on this thread go to a kernel.
pub(crate) struct Entered {
    outer: *const Kernel,
}

impl Entered {
    pub(crate) fn new(kernel: &Kernel) -> Self {
        Self { outer: KERNEL.replace(kernel) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        KERNEL.set(self.outer);
    }
}

fn with<R>(call: impl FnOnce(&Kernel, &Ext) -> R) -> R {
    // SAFETY: the scheduler runs only while its kernel is entered.
    let kernel = unsafe { KERNEL.get().as_ref() }.expect("the scheduler is called by a kernel");
    let ext = kernel.ext.as_deref().expect("only sched_ext calls these");
    ext.count_helper(kernel);
    kernel.pause();
    call(kernel, ext)
}

unsafe extern "C-unwind" fn missing() {
    panic!("the scheduler calls a kfunc or helper that the model does not have");
}

macro_rules! calls {
    ($(
        fn $name:ident($k:pat, $ext:pat $(, $arg:ident: $type:ty)*) $(-> $ret:ty)? $body:block
    )*) => {
        #[allow(non_snake_case)]
        mod calls {
            use super::*;
            $(pub(super) unsafe extern "C-unwind" fn $name(
                $($arg: $type),*
            ) $(-> $ret)? {
                with(|$k, $ext| $body)
            })*
        }

        /// The address of a function; a call of one that is missing panics.
        pub(crate) fn find(name: &str) -> usize {
            match name {
                $(stringify!($name) => calls::$name as *const () as usize,)*
                _ => missing as *const () as usize,
            }
        }
    };
}

calls! {
    // ---- helpers ----
    fn hf_map_lookup(k, ext, map: *mut u64, desc: *const MapDesc, key: *const u64) -> u64 {
        // SAFETY: the shim passes a description at each call.
        let desc = unsafe { &*desc };
        if desc.is_hash() {
            ext.count_hash_lookup(k);
        }
        ext.bpf.lookup(k, map, desc, key)
    }
    fn hf_map_update(
        k, ext, map: *mut u64, desc: *const MapDesc, key: *const u64, value: *const u8, flags: u64
    ) -> i64 {
        // SAFETY: as above.
        ext.bpf.update(k, map, unsafe { &*desc }, (key, value), flags)
    }
    fn hf_map_delete(k, ext, map: *mut u64, desc: *const MapDesc, key: *const u64) -> i64 {
        // SAFETY: as above.
        ext.bpf.delete(k, map, unsafe { &*desc }, key)
    }
    fn hf_task_storage(k, ext, map: *mut u64, size: u32, task: u64, flags: u64) -> u64 {
        match ext.task_at(k, task) {
            Some(task) => ext.bpf.storage(map, size, &task, flags),
            None => 0,
        }
    }
    fn hf_timer_init(k, ext, timer: *mut u64, map: *mut u64, desc: *const MapDesc) -> i64 {
        // SAFETY: as above.
        ext.bpf.timer_init(k, timer, map, unsafe { &*desc });
        0
    }
    fn hf_timer_set_callback(_, ext, timer: *const u64, callback: u64) -> i64 {
        ext.bpf.timer_set_callback(timer, callback);
        0
    }
    fn hf_timer_start(k, ext, timer: *const u64, ns: u64, _flags: u64) -> i64 {
        ext.bpf.timer_start(k, timer, ns);
        0
    }
    // What a spin lock protects calls no helper, so that no other CPU comes in.
    fn hf_spin_lock(_, _, _lock: *mut u32) {}
    fn hf_spin_unlock(_, _, _lock: *mut u32) {}
    fn hf_read_user(k, ext, to: *mut u8, size: u32, from: u64) -> i64 {
        // SAFETY: `to` has `size` bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(to, size as usize) };
        let memory = ext.current(k).memory.borrow().clone();
        if memory.is_some_and(|memory| memory.copy(from, to)) {
            return 0;
        }
        to.fill(0);
        -14
    }
    fn hf_read_kernel(_, _, to: *mut u8, size: u32, from: *const u8) -> i64 {
        if from.is_null() {
            return -14;
        }
        // SAFETY: the scheduler reads structs of the model only.
        unsafe { std::ptr::copy_nonoverlapping(from, to, size as usize) };
        0
    }
    fn hf_this_cpu(k, _) -> u32 { k.this_cpu() as u32 }
    fn hf_random(k, _) -> u32 { k.random_u32() }
    fn hf_current(k, ext) -> u64 { ext.current(k).raw.address() }
    fn hf_ktime(k, _) -> u64 { k.now() }
    fn hf_in_task(k, _) -> bool { k.rqs[k.this_cpu()].in_task.get() }
    fn hf_has(k, _, name: *const std::ffi::c_char) -> bool {
        // SAFETY: a string of the shim's.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        k.config.kernel.has(name.to_str().unwrap_or_default())
    }

    // ---- kfuncs of BPF ----
    fn bpf_cpumask_test_cpu(k, _, cpu: u32, mask: *const u64) -> bool {
        // SAFETY: a cpumask of the model has a bit for each CPU.
        (cpu as usize) < k.config.nr_cpus
            && unsafe { mask.add(cpu as usize / 64).read() } >> (cpu % 64) & 1 != 0
    }
    fn bpf_rcu_read_lock(_, _) {}
    fn bpf_rcu_read_unlock(_, _) {}
    fn bpf_cgroup_ancestor(_, _, group: u64, level: i32) -> u64 {
        let ancestors = (group + u64::from(l::CGROUP_ANCESTORS)) as *const u64;
        // SAFETY: a struct cgroup of the model, which has an ancestor for each level.
        unsafe { ancestors.add(level as usize).read() }
    }
    fn bpf_cgroup_release(_, _, _group: u64) {}
    fn bpf_task_from_pid(k, ext, tid: i32) -> u64 { ext.task_from_pid(k, tid) }
    fn bpf_task_release(_, _, _task: u64) {}

    // ---- kfuncs of sched_ext ----
    fn scx_bpf_now(k, _) -> u64 { k.now() }
    fn scx_bpf_error_bstr(k, _, format: *const std::ffi::c_char, data: *const u64, _size: u32) {
        // SAFETY: the macros of the scx headers pass a value for each conversion.
        k.violation("scx_error", unsafe { crate::bstr::text(format, data) });
    }
    fn scx_bpf_dump_bstr(_, ext, format: *const std::ffi::c_char, data: *const u64, _size: u32) {
        // SAFETY: as above.
        ext.dump.borrow_mut().push_str(&unsafe { crate::bstr::text(format, data) });
    }
    fn scx_bpf_create_dsq(_, ext, id: u64, _node: i32) -> i32 { ext.create_dsq(id) }
    fn scx_bpf_dsq_nr_queued(k, ext, id: u64) -> i32 { ext.dsq_nr_queued(k, id) }
    fn scx_bpf_task_cpu(k, ext, task: u64) -> i32 {
        ext.task_at(k, task).map_or(0, |task| task.cpu.get() as i32)
    }
    fn scx_bpf_kick_cpu(k, ext, cpu: i32, flags: u64) { ext.kick_cpu(k, cpu, flags) }
    fn scx_bpf_test_and_clear_cpu_idle(k, ext, cpu: i32) -> bool {
        (cpu as usize) < k.config.nr_cpus && ext.idle.claim(&k.config, cpu as usize)
    }
    fn scx_bpf_get_idle_cpumask(_, ext) -> u64 { ext.idle.cpus.address() }
    fn scx_bpf_get_idle_smtmask(k, ext) -> u64 {
        // Without SMT the kernel gives the mask of CPUs.
        let mask = if k.config.threads_per_core > 1 { &ext.idle.cores } else { &ext.idle.cpus };
        mask.address()
    }
    fn scx_bpf_put_idle_cpumask(_, _, _mask: u64) {}
    fn scx_bpf_pick_idle_cpu(k, ext, mask: *const u64, flags: u64) -> i32 {
        // SAFETY: as bpf_cpumask_test_cpu().
        let allowed = |index| unsafe { mask.add(index).read() };
        let core = flags & l::PICK_IDLE_CORE != 0;
        ext.idle.pick(k, &allowed, core).map_or(-16, |cpu| cpu as i32)
    }
    fn scx_bpf_select_cpu_dfl(k, ext, task: u64, prev: i32, flags: u64, is_idle: *mut bool) -> i32 {
        let cpu = ext.select_cpu(k, task, prev as usize, flags, 0);
        // SAFETY: a variable of the caller.
        unsafe { is_idle.write(cpu.is_some()) };
        cpu.map_or(prev, |cpu| cpu as i32)
    }
    fn scx_bpf_select_cpu_and___compat(
        k, ext, task: u64, prev: i32, wake_flags: u64, _allowed: u64, flags: u64
    ) -> i32 {
        ext.select_cpu(k, task, prev as usize, wake_flags, flags).map_or(-16, |cpu| cpu as i32)
    }
    // The scheduler passes the task's own cpus_ptr.
    fn __scx_bpf_select_cpu_and(k, ext, task: u64, _allowed: u64, args: u64) -> i32 {
        // SAFETY: struct scx_bpf_select_cpu_and_args.
        let (prev, wake_flags, flags) = unsafe {
            (
                ((args + u64::from(l::SELECT_CPU_ARGS_PREV)) as *const i32).read(),
                ((args + u64::from(l::SELECT_CPU_ARGS_WAKE_FLAGS)) as *const u64).read(),
                ((args + u64::from(l::SELECT_CPU_ARGS_FLAGS)) as *const u64).read(),
            )
        };
        ext.select_cpu(k, task, prev as usize, wake_flags, flags).map_or(-16, |cpu| cpu as i32)
    }
    fn scx_bpf_task_set_slice___new(k, ext, task: u64, slice: u64) -> bool {
        if let Some(task) = ext.task_at(k, task) {
            task.raw.set(l::TASK_SCX_SLICE, slice);
        }
        true
    }
    fn scx_bpf_dsq_insert___v2___compat(
        k, ext, task: u64, dsq: u64, slice: u64, flags: u64
    ) -> bool {
        ext.dsq_insert(k, task, dsq, slice, flags)
    }
    fn scx_bpf_dsq_insert___v1(k, ext, task: u64, dsq: u64, slice: u64, flags: u64) {
        ext.dsq_insert(k, task, dsq, slice, flags);
    }
    fn scx_bpf_dispatch___compat(k, ext, task: u64, dsq: u64, slice: u64, flags: u64) {
        ext.dsq_insert(k, task, dsq, slice, flags);
    }
    fn __scx_bpf_dsq_insert_vtime(k, ext, task: u64, args: u64) -> bool {
        // SAFETY: struct scx_bpf_dsq_insert_vtime_args: four times u64, as asserted in layout.h.
        let [dsq, slice, vtime, flags] = unsafe { (args as *const [u64; 4]).read() };
        ext.dsq_insert_vtime(k, task, (dsq, slice, vtime, flags))
    }
    fn scx_bpf_dsq_insert_vtime___compat(
        k, ext, task: u64, dsq: u64, slice: u64, vtime: u64, flags: u64
    ) {
        ext.dsq_insert_vtime(k, task, (dsq, slice, vtime, flags));
    }
    fn scx_bpf_dispatch_vtime___compat(
        k, ext, task: u64, dsq: u64, slice: u64, vtime: u64, flags: u64
    ) {
        ext.dsq_insert_vtime(k, task, (dsq, slice, vtime, flags));
    }
    fn scx_bpf_dsq_move_to_local___v2___compat(k, ext, dsq: u64, flags: u64) -> bool {
        ext.move_to_local(k, dsq, flags)
    }
    fn scx_bpf_dsq_move_to_local___v1(k, ext, dsq: u64) -> bool { ext.move_to_local(k, dsq, 0) }
    fn scx_bpf_consume___old(k, ext, dsq: u64) -> bool { ext.move_to_local(k, dsq, 0) }
    fn scx_bpf_dsq_move___new(k, ext, iter: *mut u64, task: u64, dsq: u64, flags: u64) -> bool {
        ext.dsq_move(k, iter, task, dsq, flags)
    }
    fn scx_bpf_dispatch_from_dsq___old(
        k, ext, iter: *mut u64, task: u64, dsq: u64, flags: u64
    ) -> bool {
        ext.dsq_move(k, iter, task, dsq, flags)
    }
    fn bpf_iter_scx_dsq_new(k, ext, iter: *mut u64, dsq: u64, flags: u64) -> i32 {
        ext.iter_new(k, iter, dsq, flags)
    }
    fn bpf_iter_scx_dsq_next(k, ext, iter: *mut u64) -> u64 { ext.iter_next(k, iter) }
    fn bpf_iter_scx_dsq_destroy(_, _, _iter: *mut u64) {}
    fn scx_bpf_dsq_peek(k, ext, dsq: u64) -> u64 { ext.peek(k, dsq) }
    // The scheduler passes its CPU's local DSQ, and no flags.
    fn scx_bpf_dsq_reenq___compat(k, ext, _dsq: u64, _flags: u64) { ext.reenqueue_local(k); }
    fn scx_bpf_reenqueue_local___v1(k, ext) -> u32 { ext.reenqueue_local(k) }
}
