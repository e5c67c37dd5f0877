// SPDX-License-Identifier: GPL-2.0-or-later
//! Patches for QEMU's emulation, applied to a copy of the program. Each place is found by the
//! instructions there, not by its address.
//!
//! **Interrupts are delivered once.** KVM has VMRUN inject a guest's interrupts. QEMU's
//! `helper_vmrun()` delivers an external interrupt itself, by `do_interrupt_x86_hardirq()`. But it
//! leaves the vector in `CPUState.exception_index`. If the emulated CPU is then asked to leave its
//! loop (`cpu_handle_interrupt()` sees `exit_request` and no interrupt), it takes the vector for a
//! pending exception. The guest gets its interrupt twice, the second time with interrupts off: in
//! the first instruction of the handler, or below a lock that the handler takes. It panics, hangs
//! or ends in a triple fault. Other kinds of event leave `helper_vmrun()` for the loop and need the
//! vector. An external interrupt does not, so the patch leaves its store out.
//!
//! The other patches are for hosts whose clock counts instructions.
//!
//! **A spinning CPU takes its time.** `helper_pause()` leaves the loop and gives the rest of the
//! CPU's turn to other emulated CPUs, so that spinning would cost next to nothing. Patched, it ends
//! the translated block, goes on with the same CPU, and counts as [`PAUSE`] instructions: a CPU
//! takes tens of cycles for it.
//!
//! **Turns are short.** CPUs take turns until the next timer, which may be milliseconds away: every
//! CPU would be stolen from the host for as long. `icount_percpu_budget()` returns [`TURN`]
//! instead.
//!
//! **PAUSE exits once in [`PAUSES`].** QEMU's pause filter has no counter: where PAUSE is
//! intercepted, each one exits, and a spinning vCPU does little else.
//! `helper_svm_check_intercept()` counts them. The code for that lies in `icount_percpu_budget()`,
//! and the counter in `replay_break_icount`, which only replays use.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use sha2::{Digest, Sha256};

use super::spec::Clock;
use crate::error::{Error, Result};
use crate::images::{hex, made_once};
use crate::progress::Progress;

/// Raised when a patch changes, so that older copies are left alone.
const VERSION: u32 = 5;

/// Instructions of one turn of a CPU: a microsecond, about as long as one CPU takes to make another
/// notice something.
const TURN: u32 = 1000;

/// Instructions that a PAUSE counts as: 40 ns where two CPUs take turns, as on hardware.
const PAUSE: u8 = 20;

/// PAUSEs for each exit: with two CPUs about 50 us, as on hardware with KVM's count of 3000.
const PAUSES: u32 = 1000;

/// Bytes of the `icount_percpu_budget()` that returns [`TURN`].
const ROOM_FOR_TURN: usize = 8;

const NOP: u8 = 0x90;
const JMP: u8 = 0xe9;

/// The note of a run whose QEMU has none of the patches.
pub(super) const NOT_PATCHED: &str = "this build of QEMU is not known and cannot be patched: \
     its emulation loses guests, whose windows are measured again";
const NOT_COUNTING: &str =
    "this build of QEMU is not known well enough: a clock that counts instructions cannot be had";

/// The program to run for a host with such a clock, and whether it counts instructions. None if the
/// program itself has to do.
pub(super) fn copy_for(
    clock: Clock,
    program: &Path,
    directory: &Path,
    progress: &Progress,
) -> Result<Option<(PathBuf, bool)>> {
    if clock != Clock::Machine {
        if let Some(copy) = patched(program, true, directory)? {
            return Ok(Some((copy, true)));
        }
        if clock == Clock::Instructions {
            return Err(Error::Unsupported(NOT_COUNTING.into()));
        }
        progress.note(NOT_COUNTING);
    }
    Ok(patched(program, false, directory)?.map(|copy| (copy, false)))
}

/// A patched copy of the program, below `directory`; none if the program's code is not as expected.
/// `counts`: for a host whose clock counts instructions.
fn patched(program: &Path, counts: bool, directory: &Path) -> Result<Option<PathBuf>> {
    let mut data = fs::read(program).map_err(Error::io("reading", program))?;
    let kind = if counts { "counting" } else { "plain" };
    let name = format!("qemu-patched-{VERSION}-{kind}-{}", &hex(&Sha256::digest(&data))[..20]);
    let Some(patches) = Program::parse(&data).and_then(|program| program.patches(counts)) else {
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

/// The bytes to put there.
#[derive(Debug, PartialEq)]
struct Patch {
    /// From the beginning of a function, or of the file.
    offset: usize,
    bytes: Vec<u8>,
}

struct Program<'a>(ElfFile<'a, FileHeader64<Endianness>>);

impl<'a> Program<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        ElfFile::parse(data).ok().map(Program)
    }

    /// All patches for such a host, or none.
    fn patches(&self, counts: bool) -> Option<Vec<Patch>> {
        let deliver = self.function("do_interrupt_x86_hardirq")?.address;
        let vmrun = self.function("helper_vmrun")?;
        let mut patches = vec![vmrun.in_file(vmrun.without_useless_store(deliver)?)];
        if counts {
            patches.extend(self.patches_for_counting()?);
        }
        Some(patches)
    }

    fn patches_for_counting(&self) -> Option<[Patch; 4]> {
        let pause = self.function("helper_pause")?;
        let budget = self.function("icount_percpu_budget")?;
        let check = self.function("helper_svm_check_intercept")?;
        let check_param = self.function("cpu_svm_check_intercept_param")?.address;
        let counter = self.symbol("replay_break_icount")?.address();
        let exit = self.function("cpu_loop_exit")?.address;
        let left = self.function("icount_update")?.field_of_instructions_left()?;
        let pausing = budget.address + ROOM_FOR_TURN as u64;
        let pausing_code = taking_time_for_pause(pausing, left, exit)?;
        let count = pausing + pausing_code.len() as u64;
        let other = [pausing_code, counting_pauses(count, counter, check_param)?].concat();
        Some([
            pause.in_file(pause.staying_in_the_loop()?),
            pause.in_file(pause.calling(exit, pausing)?),
            budget.in_file(budget.saying_turn(other)?),
            check.in_file(check.counting_pauses(check_param, count)?),
        ])
    }

    fn symbol(&self, name: &str) -> Option<impl ObjectSymbol<'_>> {
        self.0.dynamic_symbols().find(|s| s.name() == Ok(name))
    }

    fn function(&self, name: &str) -> Option<Function<'a>> {
        let symbol = self.symbol(name)?;
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

    fn in_file(&self, Patch { offset, bytes }: Patch) -> Patch {
        Patch { offset: self.offset + offset, bytes }
    }

    fn patch(&self, address: u64, bytes: Vec<u8>) -> Option<Patch> {
        Some(Patch { offset: usize::try_from(address - self.address).ok()?, bytes })
    }

    /// `helper_vmrun()` without the store of the vector into `exception_index` before `deliver` is
    /// called.
    fn without_useless_store(&self, deliver: u64) -> Option<Patch> {
        /// Vector of a non-maskable interrupt. It is the only constant vector, so its store gives
        /// away the field's offset.
        const NMI: u32 = 2;
        /// More instructions than lie between the two: other fields are set, and a log is written.
        const NEAR: usize = 16;
        let code = self.instructions();
        let nmi = only(code.iter().filter(|i| stores(i, NMI)))?;
        let call = only(code.iter().enumerate().filter(|(_, i)| calls(i, deliver)))?;
        let field = |i: &Instruction| (i.memory_base(), i.memory_displacement64());
        let before = &code[call.0.saturating_sub(NEAR)..call.0];
        let store = only(
            before.iter().filter(|i| i.code() == Code::Mov_rm32_r32 && field(i) == field(nmi)),
        )?;
        self.patch(store.ip(), vec![NOP; store.len()])
    }

    /// `helper_pause()` with "no exception" in place of the value that ends the loop.
    fn staying_in_the_loop(&self) -> Option<Patch> {
        /// `EXCP_INTERRUPT`.
        const LEAVE: u32 = 0x10000;
        const STAY: i32 = -1;
        let code = self.instructions();
        let store = only(code.iter().filter(|i| stores(i, LEAVE)))?;
        let bytes = STAY.to_le_bytes().to_vec();
        // The immediate is the instruction's end.
        self.patch(store.next_ip() - bytes.len() as u64, bytes)
    }

    /// The only call of `before`, turned into one of `now`.
    fn calling(&self, before: u64, now: u64) -> Option<Patch> {
        let code = self.instructions();
        let call = only(code.iter().filter(|i| calls(i, before)))?;
        let bytes = relative(call.next_ip(), now)?.to_vec();
        self.patch(call.next_ip() - bytes.len() as u64, bytes)
    }

    /// The offset of a `CPUState`'s count of instructions left in its turn, 16 bits. It is the only
    /// such field that `icount_update()` reads.
    fn field_of_instructions_left(&self) -> Option<u32> {
        let code = self.instructions();
        let read = only(code.iter().filter(|i| i.code() == Code::Movzx_r32_rm16))?;
        let is_of_argument =
            read.memory_base() == Register::RDI && read.memory_index() == Register::None;
        is_of_argument.then_some(read.memory_displacement32())
    }

    /// An `icount_percpu_budget()` that returns [`TURN`], `mov $TURN,%eax; ret`, with `other` code
    /// behind.
    fn saying_turn(&self, other: Vec<u8>) -> Option<Patch> {
        let mut bytes = [&[0xb8], &TURN.to_le_bytes()[..], &[0xc3]].concat();
        bytes.resize(ROOM_FOR_TURN, NOP);
        bytes.extend(other);
        if bytes.len() > self.code.len() {
            return None;
        }
        self.patch(self.address, bytes)
    }

    /// `helper_svm_check_intercept()` adds a zero and its return address to its arguments and goes
    /// on as `check_param`. Patched, it goes on as `count`.
    fn counting_pauses(&self, check_param: u64, count: u64) -> Option<Patch> {
        let code = self.instructions();
        let mnemonics: Vec<_> = code.iter().map(Instruction::mnemonic).collect();
        let known = [Mnemonic::Endbr64, Mnemonic::Mov, Mnemonic::Xor, Mnemonic::Jmp];
        let [begin, address, zero, jump] = code[..] else { return None };
        let is_known = mnemonics == known
            && (address.op0_register(), address.memory_base()) == (Register::RCX, Register::RSP)
            && address.memory_displacement64() == 0
            && (zero.op0_register(), zero.op1_register()) == (Register::EDX, Register::EDX)
            && jump.near_branch_target() == check_param;
        if !is_known {
            return None;
        }
        let mut bytes = vec![JMP];
        bytes.extend(relative(begin.next_ip() + 5, count)?);
        self.patch(begin.next_ip(), bytes)
    }
}

/// Code at `address` that takes up to [`PAUSE`] off the instructions `left` in its argument's turn,
/// and goes on as `exit`.
fn taking_time_for_pause(address: u64, left: u32, exit: u64) -> Option<Vec<u8>> {
    let left = left.to_le_bytes();
    let mut code = [&[0x66, 0x83, 0xaf], &left[..], &[PAUSE]].concat(); // subw $PAUSE,left(%rdi)
    code.extend([0x73, 9]); // jnc 1f
    code.extend([&[0x66, 0xc7, 0x87], &left[..], &[0, 0]].concat()); // movw $0,left(%rdi)
    code.push(JMP); // 1: jmp exit
    code.extend(relative(address + code.len() as u64 + 4, exit)?);
    Some(code)
}

/// Code at `address` that goes on as `check_param`, for PAUSE only when `counter` has run down.
fn counting_pauses(address: u64, counter: u64, check_param: u64) -> Option<Vec<u8>> {
    /// `SVM_EXIT_PAUSE`.
    const EXIT: u8 = 0x77;
    let mut code = vec![0x48, 0x8b, 0x0c, 0x24]; // mov (%rsp),%rcx
    code.extend([0x31, 0xd2]); // xor %edx,%edx
    code.extend([0x83, 0xfe, EXIT]); // cmp $EXIT,%esi
    code.extend([0x75, 18]); // jne 1f
    code.extend([0xff, 0x0d]); // decl counter
    code.extend(relative(address + code.len() as u64 + 4, counter)?);
    code.extend([0x79, 15]); // jns 2f
    code.extend([0xc7, 0x05]); // movl $PAUSES - 1,counter
    code.extend(relative(address + code.len() as u64 + 8, counter)?);
    code.extend((PAUSES - 1).to_le_bytes());
    code.push(JMP); // 1: jmp check_param
    code.extend(relative(address + code.len() as u64 + 4, check_param)?);
    code.push(0xc3); // 2: ret
    Some(code)
}

/// The relative address of `target` in an instruction that ends at `next`.
fn relative(next: u64, target: u64) -> Option<[u8; 4]> {
    let distance = i32::try_from(target.cast_signed() - next.cast_signed()).ok()?;
    Some(distance.to_le_bytes())
}

fn calls(instruction: &Instruction, function: u64) -> bool {
    instruction.code() == Code::Call_rel32_64 && instruction.near_branch_target() == function
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
    fn code_with_call(before: &[&[u8]], after: &[&[u8]]) -> Vec<u8> {
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
        let found = at(&code_with_call(&[OTHER, STORE, OTHER], &[OTHER, STORE, NMI]));
        assert_eq!(found, Some(Patch { offset: OTHER.len(), bytes: vec![0x90; STORE.len()] }));
    }

    #[test]
    fn unknown_code_is_left_alone() {
        assert_eq!(
            at(&code_with_call(&[OTHER, STORE], &[])),
            None,
            "nothing tells where the field is"
        );
        assert_eq!(
            at(&code_with_call(&[OTHER], &[STORE, NMI])),
            None,
            "the store is not before the delivery"
        );
        assert_eq!(at(&code_with_call(&[STORE, STORE], &[NMI])), None, "two stores");
        let call = code_with_call(&[STORE], &[NMI]);
        let another = function(&call).without_useless_store(DELIVER + 1);
        assert_eq!(another, None, "another function is called");
        assert_eq!(at(&[]), None);
        for code in [OTHER.to_vec(), [LEAVE, LEAVE].concat()] {
            assert_eq!(function(&code).staying_in_the_loop(), None, "{code:x?}");
        }
        assert_eq!(function(&[0xc3]).saying_turn(Vec::new()), None, "no room");
        assert_eq!(function(&[0xc3]).counting_pauses(DELIVER, DELIVER), None);
    }

    #[test]
    fn a_pause_does_not_leave_the_loop() {
        let code = [OTHER, LEAVE, OTHER].concat();
        let Patch { offset, bytes } = function(&code).staying_in_the_loop().unwrap();
        let mut patched = code.clone();
        patched[offset..][..bytes.len()].copy_from_slice(&bytes);
        let store = &function(&patched).instructions()[1];
        assert!(stores(store, u32::MAX), "{store:?}");
        assert_eq!(patched.len(), code.len());
    }

    #[test]
    fn a_turn_is_all_that_the_budget_says() {
        let Patch { bytes, .. } = function(&[0x90; 32]).saying_turn(vec![0xf4]).unwrap();
        let code = function(&bytes).instructions();
        let codes: Vec<_> = code.iter().map(Instruction::code).collect();
        let expected = [Code::Mov_r32_imm32, Code::Retnq, Code::Nopd, Code::Nopd, Code::Hlt];
        assert_eq!(codes, expected);
        assert_eq!(code[0].immediate32(), TURN);
        assert_eq!(code[4].ip(), VMRUN + ROOM_FOR_TURN as u64);
    }

    #[test]
    fn pauses_are_counted_and_every_branch_goes_where_it_should() {
        const CHECK_PARAM: u64 = 0x9000;
        const COUNTER: u64 = 0x40_0000;
        let bytes = counting_pauses(VMRUN, COUNTER, CHECK_PARAM).unwrap();
        let code = function(&bytes).instructions();
        let codes: Vec<_> = code.iter().map(Instruction::code).collect();
        let expected = [
            Code::Mov_r64_rm64,
            Code::Xor_rm32_r32,
            Code::Cmp_rm32_imm8,
            Code::Jne_rel8_64,
            Code::Dec_rm32,
            Code::Jns_rel8_64,
            Code::Mov_rm32_imm32,
            Code::Jmp_rel32_64,
            Code::Retnq,
        ];
        assert_eq!(codes, expected);
        assert_eq!(code[3].near_branch_target(), code[7].ip());
        assert_eq!(code[5].near_branch_target(), code[8].ip());
        assert_eq!(code[7].near_branch_target(), CHECK_PARAM);
        for counter in [&code[4], &code[6]] {
            assert_eq!(counter.ip_rel_memory_address(), COUNTER);
        }
        assert!(stores(&code[6], PAUSES - 1));
        assert_eq!(counting_pauses(0, 1 << 40, CHECK_PARAM), None, "too far away");
    }

    #[test]
    fn a_pause_takes_its_time() {
        const LEFT: u32 = 0x405c;
        // movzwl 0x405c(%rdi),%edx
        let update = [0x0f, 0xb7, 0x97, 0x5c, 0x40, 0x00, 0x00];
        assert_eq!(function(&update).field_of_instructions_left(), Some(LEFT));
        assert_eq!(function(OTHER).field_of_instructions_left(), None);

        let bytes = taking_time_for_pause(VMRUN, LEFT, DELIVER).unwrap();
        let code = function(&bytes).instructions();
        let codes: Vec<_> = code.iter().map(Instruction::code).collect();
        let expected =
            [Code::Sub_rm16_imm8, Code::Jae_rel8_64, Code::Mov_rm16_imm16, Code::Jmp_rel32_64];
        assert_eq!(codes, expected);
        for field in [&code[0], &code[2]] {
            assert_eq!((field.memory_base(), field.memory_displacement32()), (Register::RDI, LEFT));
        }
        assert_eq!((code[0].immediate8(), code[2].immediate16()), (PAUSE, 0));
        assert_eq!(code[1].near_branch_target(), code[3].ip());
        assert_eq!(code[3].near_branch_target(), DELIVER);

        let before = code_with_call(&[OTHER], &[]);
        let Patch { offset, bytes } = function(&before).calling(DELIVER, 0x3000).unwrap();
        let mut patched = before.clone();
        patched[offset..][..bytes.len()].copy_from_slice(&bytes);
        assert!(calls(&function(&patched).instructions()[1], 0x3000));
        assert_eq!(function(&before).calling(DELIVER + 1, 0x3000), None);
    }

    #[test]
    fn the_check_of_intercepts_goes_by_the_count() {
        // endbr64; mov (%rsp),%rcx; xor %edx,%edx; jmp DELIVER
        let mut check = vec![0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x0c, 0x24, 0x31, 0xd2, JMP];
        check.extend(relative(VMRUN + 15, DELIVER).unwrap());
        let Patch { offset, bytes } = function(&check).counting_pauses(DELIVER, 0x3000).unwrap();
        assert_eq!(function(&check).counting_pauses(DELIVER + 1, 0x3000), None);
        let mut patched = check.clone();
        patched[offset..][..bytes.len()].copy_from_slice(&bytes);
        let code = function(&patched).instructions();
        assert_eq!(code[0].code(), Code::Endbr64);
        assert_eq!(code[1].near_branch_target(), 0x3000);
    }

    #[test]
    fn a_file_that_is_no_program_is_left_alone() {
        assert!(Program::parse(b"#!/bin/sh\n").is_none());
    }
}
