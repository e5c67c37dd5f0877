// SPDX-License-Identifier: GPL-2.0-or-later
//! The agent that runs as PID 1 of the lab's virtual hosts and guests, and the protocol it speaks.

pub mod protocol;
