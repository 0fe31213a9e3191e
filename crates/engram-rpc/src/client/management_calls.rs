//! Management calls: one request each, sent again if the connection is lost.

use std::sync::Arc;

use engram_core::{Error, Result};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::connect::Connector;
use super::connect_errors::{OTHER_CALL_CONNECTS, describe_call_failure};
use super::connection::Connection;
use crate::pb;
use crate::pb::manage_request::Call;
use crate::pb::manage_response::Outcome;

/// Removes a broken connection, so that the next call opens another; does nothing if it was replaced already.
fn discard_broken(connection: &Mutex<Option<Connection>>, broken: &Connection) {
    // If another call has the lock, it may be replacing the connection. Otherwise, the next call fails on the broken
    // connection and tries again.
    if let Ok(mut slot) = connection.try_lock() {
        slot.take_if(|open| Arc::ptr_eq(&open.received_bytes, &broken.received_bytes));
    }
}

/// True if a call can be sent again when it is not known whether the server has handled it. Creating or dropping a
/// table again fails, although the first call has succeeded; another reset removes what was inserted after the first.
fn can_be_repeated(call: &Call) -> bool {
    !matches!(call, Call::Create(_) | Call::Drop(_) | Call::Reset(_))
}

/// Sends a management call. After a failure, sends it again if it can be repeated, until `reconnect_timeout` after
/// `started`.
pub(super) async fn send_with_retry(
    connector: &Connector,
    connection: &Mutex<Option<Connection>>,
    call: Call,
    started: Instant,
) -> Result<Outcome> {
    loop {
        let mut open = {
            // Another call may hold the lock for a while, because it is connecting.
            let slot = timeout_at(connector.latest_response(started), connection.lock()).await;
            let mut slot = slot.map_err(|_| connector.unreachable(OTHER_CALL_CONNECTS))?;
            slot.take_if(|open| connector.has_moved(&open.target));
            // A call that must not be repeated needs a connection that still works.
            if !can_be_repeated(&call)
                && let Some(open) = &mut *slot
                && connector.handshake(&mut open.client).await.is_err()
            {
                *slot = None;
            }
            match &*slot {
                Some(open) => open.clone(),
                None => slot.insert(connector.connect(started).await?).clone(),
            }
        };
        let request = pb::ManageRequest {
            call: Some(call.clone()),
        };
        let response = tokio::select! {
            response = open.client.manage(request) => response,
            () = connector.moved(&open.target) => Err(Status::unavailable("it has moved to this address")),
        };
        let status = match response {
            Ok(response) => {
                let outcome = response.into_inner().outcome;
                return outcome
                    .ok_or_else(|| Error::Payload("invalid response: it is empty".into()));
            }
            Err(status) => status,
        };
        discard_broken(connection, &open);
        if let Some(error) = connector.permanent_error(&status) {
            return Err(error);
        }
        if !can_be_repeated(&call) {
            return Err(Error::Unavailable(format!(
                "the server at {} cannot be reached: {}; this call may or may not have taken effect",
                connector.address(),
                describe_call_failure(&status)
            )));
        }
        if started.elapsed() > connector.reconnect_timeout() {
            return Err(connector.unreachable(&describe_call_failure(&status)));
        }
    }
}
