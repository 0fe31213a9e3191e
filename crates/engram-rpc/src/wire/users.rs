//! The users of a table, and the calls that it has rejected.

use engram_engine::{RejectionReason, TableUserInfo, TableUserKind};

use crate::pb;

/// Encodes a user of a table.
pub(super) fn encode_user(user: &TableUserInfo) -> pb::TableUser {
    let kind = match user.kind {
        TableUserKind::Writer => pb::table_user::Kind::Writer,
        TableUserKind::Reader => pb::table_user::Kind::Reader,
    };
    pb::TableUser {
        kind: kind.into(),
        session: user.session,
        address: user.address.clone(),
        items: user.items,
        items_per_s: user.items_per_s,
        in_flight: user.in_flight,
        idle_s: user.idle_s,
    }
}

/// Decodes a user of a table.
pub(super) fn decode_user(user: pb::TableUser) -> TableUserInfo {
    TableUserInfo {
        kind: match user.kind() {
            pb::table_user::Kind::Writer => TableUserKind::Writer,
            pb::table_user::Kind::Reader => TableUserKind::Reader,
        },
        session: user.session,
        address: user.address,
        items: user.items,
        items_per_s: user.items_per_s,
        in_flight: user.in_flight,
        idle_s: user.idle_s,
    }
}

fn code_of(reason: RejectionReason) -> pb::error::Code {
    match reason {
        RejectionReason::Signature => pb::error::Code::Signature,
        RejectionReason::Priority => pb::error::Code::Priority,
        RejectionReason::InvalidArgument => pb::error::Code::InvalidArgument,
        RejectionReason::Unsatisfiable => pb::error::Code::Unsatisfiable,
        RejectionReason::DeadlineExceeded => pb::error::Code::DeadlineExceeded,
    }
}

/// Encodes numbers of rejected calls.
pub(super) fn encode_rejected_calls(calls: &[(RejectionReason, u64)]) -> Vec<pb::RejectedCalls> {
    let calls = calls.iter().map(|(reason, count)| pb::RejectedCalls {
        reason: code_of(*reason).into(),
        count: *count,
    });
    calls.collect()
}

/// Decodes numbers of rejected calls. Reasons that this version does not know are left out.
pub(super) fn decode_rejected_calls(calls: &[pb::RejectedCalls]) -> Vec<(RejectionReason, u64)> {
    let calls = calls.iter().filter_map(|calls| {
        let known = RejectionReason::ALL.into_iter();
        let mut known = known.filter(|reason| code_of(*reason) == calls.reason());
        Some((known.next()?, calls.count))
    });
    calls.collect()
}
