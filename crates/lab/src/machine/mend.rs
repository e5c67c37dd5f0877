// SPDX-License-Identifier: GPL-2.0-or-later
//! Mends for QEMU's emulation, in a copy of the program; each is found by what the code does, not by where it is.
//!
//! **Interrupts are delivered once.** KVM has VMRUN inject a guest's interrupts. QEMU's `helper_vmrun()` delivers an
//! external one itself, by `do_interrupt_x86_hardirq()`, but leaves its vector in `CPUState.exception_index`, where it
//! waits for the next thing that clears it. An emulated CPU that is asked to leave its loop before that
//! (`cpu_handle_interrupt()` sees `exit_request` and no interrupt) takes it for an exception that is still to be
//! delivered: the guest gets its interrupt twice, the second time with interrupts off, in the first instruction of
//! the handler or below a lock that the handler takes. It panics, hangs or ends in a triple fault. The other kinds of
//! event leave `helper_vmrun()` for the loop and need the vector; for an external interrupt the store is of no use
//! and left out.
//!
//! **A CPU that spins takes its time.** `helper_pause()` leaves the loop for good, so that other emulated CPUs get the
//! rest of its turn: where instructions are the clock, spinning would cost next to nothing. It still ends the
//! translated block, but goes on with the same CPU.
//!
//! **Turns are short.** Where instructions are the clock, emulated CPUs take turns until the next timer, which may be
//! milliseconds away: every CPU would be stolen from the host for as long, again and again.
//! `icount_percpu_budget()` says [`TURN`] instead.

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

/// Raised when a mend changes: copies made before are not used any more.
const VERSION: u32 = 2;

/// Instructions that a CPU executes before it is another's turn: a microsecond, about what it takes one CPU to make
/// another notice something.
const TURN: u32 = 1000;

/// What a program without mends means.
pub(super) const UNKNOWN_BUILD: &str = "this build of QEMU is not known and cannot be mended: its emulation loses guests, and CPUs \
     that take turns take long ones; `clock = \"machine\"` in the experiment's `[host]` does without turns";

/// A copy of the program with the mends, below `directory`; none if it is built in a way that is not understood.
pub(super) fn mended(program: &Path, directory: &Path) -> Result<Option<PathBuf>> {
    let mut data = fs::read(program).map_err(Error::io("reading", program))?;
    let name = format!("qemu-mended-{VERSION}-{}", &hex(&Sha256::digest(&data))[..20]);
    let Some(patches) = Program::parse(&data).and_then(|program| program.patches()) else {
        return Ok(None);
    };
    let copy = made_once(directory, &name, |mut file| {
        for patch in &patches {
            data[patch.offset..][..patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
        let io = |what| Error::io(what, directory);
        file.write_all(&data).map_err(io("writing to"))?;
        file.set_permissions(Permissions::from_mode(0o755)).map_err(io("making a program in"))
    })?;
    Ok(Some(copy))
}

/// What is to be there instead.
#[derive(Debug, PartialEq)]
struct Patch {
    /// From where a function begins, or the file.
    offset: usize,
    bytes: Vec<u8>,
}

struct Program<'a>(ElfFile<'a, FileHeader64<Endianness>>);

impl<'a> Program<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        ElfFile::parse(data).ok().map(Program)
    }

    /// All of the mends, or none.
    fn patches(&self) -> Option<Vec<Patch>> {
        let deliver = self.function("do_interrupt_x86_hardirq")?.address;
        Some(vec![
            self.patch("helper_vmrun", |f| f.without_useless_store(deliver))?,
            self.patch("helper_pause", Function::staying_in_the_loop)?,
            self.patch("icount_percpu_budget", Function::saying_turn)?,
        ])
    }

    fn patch(&self, name: &str, find: impl Fn(&Function<'a>) -> Option<Patch>) -> Option<Patch> {
        let function = self.function(name)?;
        let Patch { offset, bytes } = find(&function)?;
        Some(Patch { offset: function.offset + offset, bytes })
    }

    fn function(&self, name: &str) -> Option<Function<'a>> {
        let symbol = self.0.dynamic_symbols().find(|s| s.name() == Ok(name))?;
        let text = self.0.section_by_index(symbol.section_index()?).ok()?;
        let code = text.data_range(symbol.address(), symbol.size()).ok()??;
        let (start, _) = text.file_range()?;
        let offset = usize::try_from(start + (symbol.address() - text.address())).ok()?;
        Some(Function { code, address: symbol.address(), offset })
    }
}

struct Function<'a> {
    code: &'a [u8],
    address: u64,
    /// In the file.
    offset: usize,
}

impl Function<'_> {
    fn instructions(&self) -> Vec<Instruction> {
        Decoder::with_ip(64, self.code, self.address, DecoderOptions::NONE).into_iter().collect()
    }

    fn patch(&self, address: u64, bytes: Vec<u8>) -> Option<Patch> {
        Some(Patch { offset: usize::try_from(address - self.address).ok()?, bytes })
    }

    /// `helper_vmrun()` without the store of the vector into `exception_index` before `deliver` is called.
    fn without_useless_store(&self, deliver: u64) -> Option<Patch> {
        /// Vector of a non-maskable interrupt: the only one that is a constant, and tells where the field is.
        const NMI: u32 = 2;
        /// More than there are between the two: other fields are set, and a log is written.
        const NEAR: usize = 16;
        const NOP: u8 = 0x90;
        let code = self.instructions();
        let nmi = only(code.iter().filter(|i| stores(i, NMI)))?;
        let call = only(code.iter().enumerate().filter(|(_, i)| {
            i.code() == Code::Call_rel32_64 && i.near_branch_target() == deliver
        }))?;
        let field = |i: &Instruction| (i.memory_base(), i.memory_displacement64());
        let before = &code[call.0.saturating_sub(NEAR)..call.0];
        let store = only(
            before.iter().filter(|i| i.code() == Code::Mov_rm32_r32 && field(i) == field(nmi)),
        )?;
        self.patch(store.ip(), vec![NOP; store.len()])
    }

    /// `helper_pause()` that says there is no exception where it says that the loop is to be left.
    fn staying_in_the_loop(&self) -> Option<Patch> {
        /// `EXCP_INTERRUPT`.
        const LEAVE: u32 = 0x10000;
        const STAY: i32 = -1;
        let code = self.instructions();
        let store = only(code.iter().filter(|i| stores(i, LEAVE)))?;
        let bytes = STAY.to_le_bytes().to_vec();
        // The immediate is the last of it.
        self.patch(store.next_ip() - bytes.len() as u64, bytes)
    }

    /// `icount_percpu_budget()` that says [`TURN`]: `mov $TURN,%eax; ret`.
    fn saying_turn(&self) -> Option<Patch> {
        let bytes = [&[0xb8], &TURN.to_le_bytes()[..], &[0xc3]].concat();
        if bytes.len() > self.code.len() {
            return None;
        }
        self.patch(self.address, bytes)
    }
}

/// Whether it stores this constant.
fn stores(instruction: &Instruction, constant: u32) -> bool {
    instruction.code() == Code::Mov_rm32_imm32 && instruction.immediate32() == constant
}

fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
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
    /// `movl $0x10000,-0x3db0(%rbx)`.
    const LEAVE: &[u8] = &[0xc7, 0x83, 0x50, 0xc2, 0xff, 0xff, 0, 0, 1, 0];

    /// These instructions, a call of [`DELIVER`], and these.
    fn code(before: &[&[u8]], after: &[&[u8]]) -> Vec<u8> {
        let mut code = before.concat();
        let next = VMRUN + code.len() as u64 + 5;
        code.push(0xe8);
        code.extend(u32::try_from(DELIVER - next).unwrap().to_le_bytes());
        code.extend(after.concat());
        code
    }

    fn function(code: &[u8]) -> Function<'_> {
        Function { code, address: VMRUN, offset: 0x100 }
    }

    fn at(code: &[u8]) -> Option<Patch> {
        function(code).without_useless_store(DELIVER)
    }

    #[test]
    fn the_store_before_the_delivery_is_found() {
        let found = at(&code(&[OTHER, STORE, OTHER], &[OTHER, STORE, NMI]));
        assert_eq!(found, Some(Patch { offset: OTHER.len(), bytes: vec![0x90; STORE.len()] }));
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
        let another = function(&call).without_useless_store(DELIVER + 1);
        assert_eq!(another, None, "another function is called");
        assert_eq!(at(&[]), None);
        for code in [OTHER.to_vec(), [LEAVE, LEAVE].concat()] {
            assert_eq!(function(&code).staying_in_the_loop(), None, "{code:x?}");
        }
        assert_eq!(function(&[0xc3]).saying_turn(), None, "no room");
    }

    #[test]
    fn a_pause_does_not_leave_the_loop() {
        let code = [OTHER, LEAVE, OTHER].concat();
        let Patch { offset, bytes } = function(&code).staying_in_the_loop().unwrap();
        let mut mended = code.clone();
        mended[offset..][..bytes.len()].copy_from_slice(&bytes);
        let store = &function(&mended).instructions()[1];
        assert!(stores(store, u32::MAX), "{store:?}");
        assert_eq!(mended.len(), code.len());
    }

    #[test]
    fn a_turn_is_all_that_the_budget_says() {
        let Patch { bytes, .. } = function(&[0x90; 32]).saying_turn().unwrap();
        let code = function(&bytes).instructions();
        let codes: Vec<_> = code.iter().map(Instruction::code).collect();
        assert_eq!(codes, [Code::Mov_r32_imm32, Code::Retnq]);
        assert_eq!(code[0].immediate32(), TURN);
    }

    #[test]
    fn a_file_that_is_no_program_is_left_alone() {
        assert!(Program::parse(b"#!/bin/sh\n").is_none());
    }
}
