// SPDX-License-Identifier: GPL-2.0-or-later
//! Downloads everything that the lab needs, in advance.

use crate::error::Result;
use crate::images::Parts;
use crate::packages::{Kernel, Packages};
use crate::progress::Progress;

/// Fetches QEMU, the guests' programs, and these kernels besides the host's.
pub fn everything(kernels: &[Kernel], progress: &Progress) -> Result<()> {
    let kernels = [kernels, &[Kernel::default()]].concat();
    Parts::fetch(&Packages::default_cache(), &kernels, progress).map(drop)
}
