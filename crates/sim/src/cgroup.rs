// SPDX-License-Identifier: GPL-2.0-or-later
//! Control groups with the cpu controller.

use std::cell::Cell;
use std::rc::Rc;

use crate::layout as l;
use crate::raw::Raw;

/// A control group.
pub struct Cgroup {
    /// Its id, as `kn->id`; 1 is the root.
    pub id: u64,
    /// The group above; none: this is the root.
    pub parent: Option<Rc<Cgroup>>,
    /// How deep: 0 is the root.
    pub level: u32,
    /// `cpu.weight`.
    pub weight: Cell<u32>,
    /// `cpu.idle`.
    pub idle: Cell<bool>,
    /// `cpu.max`: quota and period in microseconds; none: no limit.
    pub max: Cell<Option<(u64, u64)>>,
    pub(crate) raw: Raw,
    _kn: Raw,
    tg: Raw,
}

impl Cgroup {
    pub(crate) fn root() -> Self {
        Self::make(1, None)
    }

    pub(crate) fn new(id: u64, parent: &Rc<Self>) -> Self {
        Self::make(id, Some(Rc::clone(parent)))
    }

    fn make(id: u64, parent: Option<Rc<Self>>) -> Self {
        let (raw, kn, tg) = (
            Raw::new(l::CGROUP_SIZE as usize),
            Raw::new(l::KERNFS_SIZE as usize),
            Raw::new(l::TG_SIZE as usize),
        );
        let level = parent.as_ref().map_or(0, |parent| parent.level + 1);
        kn.set(l::KERNFS_ID, id);
        raw.set(l::CGROUP_KN, kn.address());
        raw.set(l::CGROUP_LEVEL, level);
        raw.set(l::CGROUP_CPU_SUBSYS, tg.address());
        let mut above = parent.clone();
        while let Some(group) = above {
            raw.set(l::CGROUP_ANCESTORS + group.level * 8, group.raw.address());
            above = group.parent.clone();
        }
        raw.set(l::CGROUP_ANCESTORS + level * 8, raw.address());
        Self {
            id,
            parent,
            level,
            weight: Cell::new(100),
            idle: Cell::new(false),
            max: Cell::new(None),
            raw,
            _kn: kn,
            tg,
        }
    }

    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.set(idle);
        self.tg.set(l::TG_IDLE, i32::from(idle));
    }
}
