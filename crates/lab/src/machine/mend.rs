// SPDX-License-Identifier: GPL-2.0-or-later
//! A mend for the emulation of SVM in QEMU, without which guests of an emulated host die.
//!
//! KVM has VMRUN inject a guest's interrupts. QEMU's `helper_vmrun()` delivers an external one itself, by
//! `do_interrupt_x86_hardirq()`, but leaves its vector in `CPUState.exception_index`, where it waits for the next
//! thing that clears it. An emulated CPU that is asked to leave its loop before that (`cpu_handle_interrupt()`
//! sees `exit_request` and no interrupt) takes it for an exception that is still to be delivered: the guest gets
//! its interrupt twice, the second time with interrupts off, in the first instruction of the handler or below a
//! lock that the handler takes. It panics, hangs or ends in a triple fault.
//!
//! The other kinds of event leave `helper_vmrun()` for the loop and need the vector; for an external interrupt
//! the store is of no use. The mend is to leave it out: in a copy of the program, found by what it does and not
//! by where it is.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::images::{hex, made_once};
use crate::progress::Progress;

/// Raised when the mend changes: copies made before are not used any more.
const VERSION: u32 = 1;

/// A copy of the program with the mend, below `directory`; none if it is built in a way that is not understood.
pub(super) fn mended(
    program: &Path,
    directory: &Path,
    progress: &Progress,
) -> Result<Option<PathBuf>> {
    let mut data = fs::read(program).map_err(Error::io("reading", program))?;
    let name = format!("qemu-mended-{VERSION}-{}", &hex(&Sha256::digest(&data))[..20]);
    if !mend(&mut data) {
        progress.note(
            "this build of QEMU is not known and cannot be mended: its emulation loses guests, and their \
             windows are measured again",
        );
        return Ok(None);
    }
    let copy = made_once(directory, &name, |mut file| {
        let io = |what| Error::io(what, directory);
        file.write_all(&data).map_err(io("writing to"))?;
        file.set_permissions(Permissions::from_mode(0o755)).map_err(io("making a program in"))
    })?;
    Ok(Some(copy))
}

/// Whether the store was found and left out.
fn mend(program: &mut [u8]) -> bool {
    let Some((offset, store)) = find(program) else { return false };
    const NOP: u8 = 0x90;
    program[offset..offset + store.len()].fill(NOP);
    true
}

/// The store, and where in the file it is.
fn find(program: &[u8]) -> Option<(usize, Instruction)> {
    let file = ElfFile::<FileHeader64<Endianness>>::parse(program).ok()?;
    let symbol = |name| file.dynamic_symbols().find(|s| s.name() == Ok(name));
    let vmrun = symbol("helper_vmrun")?;
    let deliver = symbol("do_interrupt_x86_hardirq")?.address();
    let text = file.section_by_index(vmrun.section_index()?).ok()?;
    let code = text.data_range(vmrun.address(), vmrun.size()).ok()??;
    let store = useless_store(code, vmrun.address(), deliver)?;
    let (start, _) = text.file_range()?;
    let offset = usize::try_from(start + (store.ip() - text.address())).ok()?;
    Some((offset, store))
}

/// In `helper_vmrun()`: the store of the vector into `exception_index` before `deliver` is called.
fn useless_store(code: &[u8], address: u64, deliver: u64) -> Option<Instruction> {
    /// Vector of a non-maskable interrupt: the only one that is a constant, and tells where the field is.
    const NMI: u32 = 2;
    /// More than there are between the two: other fields are set, and a log is written.
    const NEAR: usize = 16;
    let code: Vec<_> =
        Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter().collect();
    let only = |found: &[usize]| (found.len() == 1).then(|| found[0]);
    let all = |what: &dyn Fn(&Instruction) -> bool| {
        code.iter().enumerate().filter(|(_, i)| what(i)).map(|(n, _)| n).collect::<Vec<_>>()
    };
    let nmi = only(&all(&|i| i.code() == Code::Mov_rm32_imm32 && i.immediate32() == NMI))?;
    let call =
        only(&all(&|i| i.code() == Code::Call_rel32_64 && i.near_branch_target() == deliver))?;
    let field = |i: &Instruction| (i.memory_base(), i.memory_displacement64());
    let before = &code[call.saturating_sub(NEAR)..call];
    let mut stores =
        before.iter().filter(|i| i.code() == Code::Mov_rm32_r32 && field(i) == field(&code[nmi]));
    let store = *stores.next()?;
    stores.next().is_none().then_some(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMRUN: u64 = 0x1000;
    const DELIVER: u64 = 0x2000;
    /// `mov %esi,-0x3db0(%rbx)`.
    const STORE: &[u8] = &[0x89, 0xb3, 0x50, 0xc2, 0xff, 0xff];
    /// `mov %r13d,0x3480(%rbx)`: another field.
    const OTHER: &[u8] = &[0x44, 0x89, 0xab, 0x80, 0x34, 0x00, 0x00];
    /// `movl $2,-0x3db0(%rbx)`.
    const NMI: &[u8] = &[0xc7, 0x83, 0x50, 0xc2, 0xff, 0xff, 2, 0, 0, 0];

    /// These instructions, a call of [`DELIVER`], and these.
    fn code(before: &[&[u8]], after: &[&[u8]]) -> Vec<u8> {
        let mut code = before.concat();
        let next = VMRUN + code.len() as u64 + 5;
        code.push(0xe8);
        code.extend(u32::try_from(DELIVER - next).unwrap().to_le_bytes());
        code.extend(after.concat());
        code
    }

    fn at(code: &[u8]) -> Option<u64> {
        useless_store(code, VMRUN, DELIVER).map(|i| i.ip() - VMRUN)
    }

    #[test]
    fn the_store_before_the_delivery_is_found() {
        assert_eq!(at(&code(&[OTHER, STORE, OTHER], &[OTHER, STORE, NMI])), Some(7));
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        assert_eq!(at(&code(&[OTHER, STORE], &[])), None, "nothing tells where the field is");
        assert_eq!(
            at(&code(&[OTHER], &[STORE, NMI])),
            None,
            "the store is not before the delivery"
        );
        assert_eq!(at(&code(&[STORE, STORE], &[NMI])), None, "two stores");
        let call = code(&[STORE], &[NMI]);
        assert_eq!(useless_store(&call, VMRUN, DELIVER + 1), None, "another function is called");
        assert_eq!(useless_store(&[], VMRUN, DELIVER), None);
    }

    #[test]
    fn a_file_that_is_no_program_is_left_alone() {
        let mut data = b"#!/bin/sh\n".to_vec();
        assert!(!mend(&mut data));
        assert_eq!(data, b"#!/bin/sh\n");
    }
}
