// SPDX-License-Identifier: GPL-2.0-or-later
//! Follows the host's VMs for some seconds, and prints how often the class of a preempted vCPU was
//! what the guest of `workloads/irql.c` said of itself. For `tests/emulated.rs`.
//!
//! ```text
//! irql_witness SECONDS
//! ```

use std::error::Error;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use holdfast_bpf::Discovery;
use holdfast_policy::VcpuClass;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use serde_json::json;

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/irql_witness.skel.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).ok_or("usage: irql_witness SECONDS")?.parse()?;
    let (mut storage, mut own) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut discovery = Discovery::attach(&mut storage, &[])?;
    let mut open = skel::IrqlWitnessSkelBuilder::default().open(&mut own)?;
    open.maps.vcpus.reuse_fd(discovery.vcpus())?;
    let mut skel = open.load()?;
    skel.attach()?;
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        discovery.poll(Duration::from_millis(100))?;
    }
    let bss = skel.maps.bss_data.as_deref().ok_or("the program has counters")?;
    let by_class = |counts: &[u64]| {
        let named = VcpuClass::ALL.iter().zip(counts);
        let named = named.filter(|(_, nr)| **nr > 0).map(|(class, nr)| (class.name(), *nr));
        named.collect::<std::collections::BTreeMap<_, _>>()
    };
    let tiers: Vec<_> = discovery.vms().values().map(|vm| vm.tier().name()).collect();
    println!(
        "{}",
        json!({
            "tiers": tiers,
            "preempted": by_class(&bss.nr),
            "wrong": by_class(&bss.nr_wrong),
            "changing": bss.nr_changing,
        })
    );
    Ok(())
}
