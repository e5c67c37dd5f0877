// SPDX-License-Identifier: GPL-2.0-or-later
//! Idle CPUs and cores, and the choice of one (`kernel/sched/ext/idle.c` of 7.2).

use std::cell::Cell;

use crate::config::Config;
use crate::cpuset::Mask;
use crate::kernel::Kernel;
use crate::layout as l;
use crate::task::PF_EXITING;

pub(crate) struct Idle {
    pub(crate) cpus: Mask,
    pub(crate) cores: Mask,
    nr_words: usize,
    /// Where each CPU's last search ended.
    cursors: Vec<Cell<usize>>,
}

impl Idle {
    pub(crate) fn new(config: &Config) -> Self {
        let idle = Self {
            cpus: Mask::new(),
            cores: Mask::new(),
            nr_words: config.nr_cpus.div_ceil(64),
            cursors: vec![Cell::new(config.nr_cpus); config.nr_cpus],
        };
        for cpu in 0..config.nr_cpus {
            idle.update(config, cpu, true);
        }
        idle
    }

    /// `cpumask_any_and_distribute()`: the first CPU of both after `after`, in a ring.
    fn next_of_both(
        &self,
        mask: &Mask,
        other: &dyn Fn(usize) -> u64,
        after: usize,
    ) -> Option<usize> {
        let first_from = |from: usize, end: usize| {
            (from / 64..self.nr_words).find_map(|index| {
                let low = if index == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
                let word = mask.word(index) & other(index) & low;
                let cpu = index * 64 + word.trailing_zeros() as usize;
                (word != 0 && cpu < end).then_some(cpu)
            })
        };
        first_from(after + 1, usize::MAX).or_else(|| first_from(0, after + 1))
    }

    /// `update_builtin_idle()`.
    pub(crate) fn update(&self, config: &Config, cpu: usize, idle: bool) {
        self.cpus.set(cpu, idle);
        if config.threads_per_core > 1 {
            let core = config.core_cpus(cpu);
            let all = idle && core.clone().all(|cpu| self.cpus.has(cpu));
            if all || !idle {
                core.for_each(|cpu| self.cores.set(cpu, all));
            }
        }
    }

    /// `scx_idle_test_and_clear_cpu()`.
    pub(crate) fn claim(&self, config: &Config, cpu: usize) -> bool {
        if config.threads_per_core > 1 {
            config.core_cpus(cpu).for_each(|cpu| self.cores.set(cpu, false));
        }
        let was = self.cpus.has(cpu);
        self.cpus.set(cpu, false);
        was
    }

    /// `pick_idle_cpu_in_node()`, with one node for all.
    pub(crate) fn pick(
        &self,
        k: &Kernel,
        allowed: &dyn Fn(usize) -> u64,
        core: bool,
    ) -> Option<usize> {
        let smt = k.config.threads_per_core > 1;
        let cursor = &self.cursors[k.this_cpu()];
        loop {
            let next = |mask| self.next_of_both(mask, allowed, cursor.get());
            let mut found = if smt { next(&self.cores) } else { None };
            if found.is_none() && !(smt && core) {
                found = next(&self.cpus);
            }
            let cpu = found?;
            cursor.set(cpu);
            if self.claim(&k.config, cpu) {
                return Some(cpu);
            }
        }
    }

    /// `scx_select_cpu_dfl()`. `local_nr` is the number of tasks in the local DSQ of a CPU.
    pub(crate) fn select(
        &self,
        k: &Kernel,
        prev: usize,
        sync: bool,
        allowed: &dyn Fn(usize) -> u64,
        core_only: bool,
        local_nr: &dyn Fn(usize) -> usize,
    ) -> Option<usize> {
        let config = &k.config;
        let is_allowed = |cpu: usize| allowed(cpu / 64) >> (cpu % 64) & 1 != 0;
        let within = |range: std::ops::Range<usize>| {
            move |index: usize| {
                let mut word = 0;
                for cpu in range.start.max(index * 64)..range.end.min(index * 64 + 64) {
                    word |= 1 << (cpu % 64);
                }
                word & allowed(index)
            }
        };
        let llc = config.llc_of(prev);
        let llc_cpus = within(config.llc_cpus(llc));
        let node = config.node_of(prev);
        let per_node = config.llcs_per_node * config.cpus_per_llc;
        let node_cpus = within(node * per_node..((node + 1) * per_node).min(config.nr_cpus));
        let has_llcs = config.nr_llcs() > 1;
        let has_nodes = config.nr_llcs() > config.llcs_per_node;
        let prev_allowed = is_allowed(prev);
        let smt = config.threads_per_core > 1;

        if sync {
            let here = k.this_cpu();
            if prev_allowed && config.same_llc(here, prev) && self.claim(config, prev) {
                return Some(prev);
            }
            let exiting = k
                .curr(here)
                .is_some_and(|curr| k.task(curr).raw.get::<u32>(l::TASK_FLAGS) & PF_EXITING != 0);
            let is_any_idle = (0..self.nr_words).any(|index| self.cpus.word(index) != 0);
            if !exiting && local_nr(here) == 0 && is_any_idle && is_allowed(here) {
                self.claim(config, here);
                return Some(here);
            }
        }
        if smt {
            if prev_allowed && self.cores.has(prev) && self.claim(config, prev) {
                return Some(prev);
            }
            let core = (has_llcs.then(|| self.pick(k, &llc_cpus, true)).flatten())
                .or_else(|| has_nodes.then(|| self.pick(k, &node_cpus, true)).flatten())
                .or_else(|| self.pick(k, allowed, true));
            if core.is_some() || core_only {
                return core;
            }
        }
        if prev_allowed && self.claim(config, prev) {
            return Some(prev);
        }
        if smt {
            let sibling = config
                .core_cpus(prev)
                .find(|cpu| *cpu != prev && is_allowed(*cpu) && self.claim(config, *cpu));
            if sibling.is_some() {
                return sibling;
            }
        }
        (has_llcs.then(|| self.pick(k, &llc_cpus, false)).flatten())
            .or_else(|| has_nodes.then(|| self.pick(k, &node_cpus, false)).flatten())
            .or_else(|| self.pick(k, allowed, core_only))
    }
}
