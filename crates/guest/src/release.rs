// SPDX-License-Identifier: GPL-2.0-or-later
//! The release of the kernel that a blob belongs to.
//!
//! BTF does not hold the release, but `linux_banner` lies in the same image, in `.rodata`, which is
//! linked right before `.BTF`: 4 to 8 MB before it in Debian's kernels. The release is optional and
//! only shown to users.

use memchr::memmem;

use crate::{
    address::{Hva, HvaRange, Slot},
    memory::{GuestMemory, MemoryError},
};

const BANNER: &[u8] = b"Linux version ";
/// Longest distance from the banner to the blob.
const BACK_MAX: u64 = 16 << 20;
/// Longest release: `__NEW_UTS_LEN` of include/uapi/linux/utsname.h.
const RELEASE_MAX: usize = 64;
const CHUNK: usize = 256 << 10;

/// The release in the banner nearest before the blob at `blob`, if there is one.
pub(crate) fn find(
    mem: &dyn GuestMemory,
    slot: Slot,
    blob: Hva,
) -> Result<Option<String>, MemoryError> {
    let start = slot.hva().max(Hva::new(blob.get().saturating_sub(BACK_MAX)));
    let mut runs = Vec::new();
    mem.resident(HvaRange { start, end: blob }, &mut runs)?;
    // The image is contiguous.
    let Some(run) = runs.last().filter(|run| run.end == blob) else { return Ok(None) };
    let overlap = BANNER.len() + RELEASE_MAX + 1;
    let mut buf = vec![0; CHUNK + overlap];
    let mut end = run.end;
    while end > run.start {
        let start = run.start.max(Hva::new(end.get().saturating_sub(CHUNK as u64)));
        let reach = HvaRange::new(start, end.get() - start.get() + overlap as u64);
        let piece = &mut buf[..HvaRange { end: reach.end.min(run.end), ..reach }.len() as usize];
        match mem.read(start, piece) {
            Err(MemoryError::NotMapped { .. }) => return Ok(None),
            other => other?,
        }
        let last = memmem::find_iter(piece, BANNER)
            .filter_map(|at| release(&piece[at + BANNER.len()..]))
            .last();
        if last.is_some() {
            return Ok(last);
        }
        end = start;
    }
    Ok(None)
}

/// The first word of `text`, if it can be a release: it begins with a digit and is plain ASCII.
fn release(text: &[u8]) -> Option<String> {
    let len = text.iter().take(RELEASE_MAX + 1).position(|byte| *byte == b' ')?;
    let word = &text[..len];
    let plain = word.iter().all(|b| b.is_ascii_alphanumeric() || b"+-._~".contains(b));
    (plain && word.first()?.is_ascii_digit()).then(|| String::from_utf8_lossy(word).into_owned())
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn accepts_a_release_and_nothing_else() {
        assert_eq!(release(b"6.1.0-50-cloud-amd64 (x").as_deref(), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release(b"%s (%s)"), None);
        assert_eq!(release(b"6.1\x1b[31m "), None, "escape sequences must not reach a terminal");
        assert_eq!(release(&[b'6'; 200]), None);
        assert_eq!(release(b""), None);
    }
}
