//! Conversion of a plan's operation into the parts of a work request.

use urnic_engine::verbs::{Mr, RemoteBuffer, SendOp, Sge, WcOpcode};

use crate::memory;
use crate::plan::{Kind, Op};

pub(super) const fn opcode(op: &Op) -> WcOpcode {
    match op.kind {
        Kind::Immediate if tells_of_a_write(op) => WcOpcode::RdmaWrite,
        Kind::Send | Kind::SendInvalidate | Kind::Immediate => WcOpcode::Send,
        Kind::Write | Kind::WriteImmediate => WcOpcode::RdmaWrite,
        Kind::Read | Kind::ReadBack | Kind::ReadLive => WcOpcode::RdmaRead,
        Kind::FetchAdd => WcOpcode::FetchAdd,
        Kind::CmpSwap => WcOpcode::CmpSwap,
        Kind::LocalInvalidate => WcOpcode::LocalInvalidate,
    }
}

/// Compares the two lowest bits with 0, which they are only sometimes.
pub(super) const fn cmp_swap(remote: RemoteBuffer, op: &Op) -> SendOp {
    SendOp::CmpSwap {
        remote,
        compare: 0,
        compare_mask: 0x3,
        swap: op.len as u64,
        swap_mask: memory::swap_mask(op),
    }
}

const fn value(op: &Op) -> u64 {
    (op.len as u64).wrapping_mul(0x0101_0101_0101)
}

/// Immediate data of a Send or a Write.
fn bits(op: &Op) -> u32 {
    u32::try_from(op.len).unwrap_or(u32::MAX).wrapping_mul(0x0101_0101)
}

/// Some Sends carry immediate data.
const fn has_immediate(op: &Op) -> bool {
    op.len % 2 == 1
}

/// Some Immediate Data belongs to a Write without payload.
const fn tells_of_a_write(op: &Op) -> bool {
    op.pieces.is_multiple_of(2)
}

pub(super) fn send(op: &Op) -> SendOp {
    let solicited = op.solicited;
    if has_immediate(op) {
        SendOp::SendImmediate { immediate: bits(op), solicited }
    } else {
        SendOp::Send { invalidate: None, solicited }
    }
}

pub(super) fn immediate(op: &Op, remote: RemoteBuffer) -> SendOp {
    let solicited = op.solicited;
    if tells_of_a_write(op) {
        SendOp::RdmaWriteImmediate { remote, immediate: bits(op), solicited }
    } else {
        SendOp::Immediate { value: value(op), solicited }
    }
}

pub(super) fn write_immediate(op: &Op, remote: RemoteBuffer) -> SendOp {
    SendOp::RdmaWriteImmediate { remote, immediate: bits(op), solicited: op.solicited }
}

pub(super) fn arrives_as(op: &Op) -> (WcOpcode, u32, u64) {
    let len = u32::try_from(op.len).unwrap_or(u32::MAX);
    match op.kind {
        Kind::Immediate if tells_of_a_write(op) => {
            (WcOpcode::RecvWriteImmediate, 0, bits(op).into())
        }
        Kind::WriteImmediate => (WcOpcode::RecvWriteImmediate, len, bits(op).into()),
        Kind::Immediate => (WcOpcode::RecvImmediate, 8, value(op)),
        Kind::Send if has_immediate(op) => (WcOpcode::RecvSendImmediate, len, bits(op).into()),
        _ => (WcOpcode::Recv, len, 0),
    }
}

/// Some elements are empty.
pub(super) fn cut(mr: &Mr, at: usize, len: usize, pieces: usize) -> Vec<Sge> {
    let bound = |piece: usize| at + len * piece * piece / (pieces * pieces);
    (0..pieces).map(|piece| mr.sge(bound(piece)..bound(piece + 1))).collect()
}
