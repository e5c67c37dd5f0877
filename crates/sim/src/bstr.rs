// SPDX-License-Identifier: GPL-2.0-or-later
//! Text of `scx_bpf_error()` and `scx_bpf_dump()`: what `bpf_bstr_printf()` makes of a format and
//! an array of values.

use std::ffi::{CStr, c_char};

/// The text of `format` (`%d`, `%u`, `%x` and `%s`, with `l` and `ll`).
///
/// # Safety
///
/// `format` is a string, and `data` has a value for each conversion; that of `%s` is a string.
pub(crate) unsafe fn text(format: *const c_char, data: *const u64) -> String {
    // SAFETY: as the caller says.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    let mut parts = format.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for (index, part) in parts.enumerate() {
        // SAFETY: as the caller says.
        let value = unsafe { data.add(index).read() };
        let conversion = part.trim_start_matches('l');
        let is_long = conversion.len() < part.len();
        let mut rest = conversion.chars();
        match (rest.next(), is_long) {
            (Some('d'), true) => out += &(value as i64).to_string(),
            (Some('d'), false) => out += &(value as i32).to_string(),
            (Some('u'), true) => out += &value.to_string(),
            (Some('u'), false) => out += &(value as u32).to_string(),
            (Some('x'), _) => out += &format!("{value:x}"),
            // SAFETY: as the caller says.
            (Some('s'), _) => out += &unsafe { CStr::from_ptr(value as _) }.to_string_lossy(),
            (other, _) => panic!("the model cannot format %{other:?}"),
        }
        out += rest.as_str();
    }
    out
}
