// SPDX-License-Identifier: GPL-2.0-or-later
//! What the policy has to keep, whatever guests claim: one program, which is linked once.

mod affinity;
mod classify;
mod common;
mod fairness;
mod grace;
mod groups;
mod host;
mod yields;
