// SPDX-License-Identifier: GPL-2.0-or-later
//! Shows how the reader sees one guest: `resolve PID GPA:HVA:LEN.. VCPU@GPA..`, all but PID and
//! VCPU in hexadecimal. Slots and the addresses of steal-time records come from KVM; `holdfast vms`
//! finds them by itself.

use std::{env, error::Error, process::ExitCode};

use holdfast_guest::{Gpa, Hva, ProcessMemory, Reader, Slot, VcpuRecord};

fn hex(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let (pid, args) = args.split_first().ok_or("usage: resolve PID GPA:HVA:LEN.. VCPU@GPA..")?;
    let (mut slots, mut records) = (Vec::new(), Vec::new());
    for arg in args {
        if let Some((vcpu, gpa)) = arg.split_once('@') {
            let gpa = Gpa::new(hex(gpa)?);
            let record = slots.iter().find_map(|s| VcpuRecord::new(vcpu.parse().ok()?, gpa, *s));
            records.push(record.ok_or("the record is in none of the slots before it")?);
        } else {
            let parts = arg.split(':').map(hex).collect::<Result<Vec<_>, _>>()?;
            let [gpa, hva, len] = parts[..] else { return Err("a slot is GPA:HVA:LEN".into()) };
            slots.push(Slot::new(Gpa::new(gpa), Hva::new(hva), len).ok_or("bad slot")?);
        }
    }
    let pid = pid.parse()?;
    let guest = Reader::new().resolve(pid, &slots, &records)?;
    println!("{}, build {}", guest.kernel(), guest.kernel().build);
    println!("{:?}", guest.layout());
    println!("{:?}", guest.deltas());
    let mem = ProcessMemory::open(pid)?;
    for vcpu in guest.vcpus() {
        let facts = guest.facts(&mem, vcpu.vcpu_idx)?;
        println!("vCPU {} is CPU {}, {:?}: {facts:x?}", vcpu.vcpu_idx, vcpu.cpu, facts.class());
    }
    println!("{:?}", guest.queues(&mem)?);
    Ok(())
}

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    let mut cause = error.source();
    eprint!("resolve: {error}");
    while let Some(inner) = cause {
        eprint!(": {inner}");
        cause = inner.source();
    }
    eprintln!();
    ExitCode::FAILURE
}
