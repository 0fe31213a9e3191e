//! How a reader continues on a new connection: which of its leases still exist.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use engram_core::{Error, SessionNumber};
use engram_engine::BatchLease;
use tonic::Status;

use super::outgoing_reply::encode_response;
use super::reader_sessions::OpenSession;
use super::{MAX_OUTSTANDING, SampleStream};
use crate::pb::LeaseState;
use crate::pb::sample_response::Outcome;
use crate::wire::decode_u64s;
use crate::{MAX_ITEMS_PER_BATCH, pb};

/// The session of a stream, and what its reader has requested with `Resume`.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    /// `None` for a reader that sends no `Resume`.
    session: Option<OpenSession>,
    /// Number of `Resume` requests.
    requests: usize,
    /// True once the last `Resume` was handled.
    is_complete: bool,
    /// Ids of the leases that the reader continues.
    continued: HashSet<u64>,
    /// Replies that are not sent yet.
    replies: VecDeque<pb::SampleResponse>,
    /// Number of the last acknowledgement that was handled.
    pub(super) acknowledged: u64,
}

impl Resumption {
    /// The number of an acknowledgement in the reader's session.
    pub(super) fn number(&self, number: Option<u64>) -> Option<SessionNumber> {
        let session = self.session.as_ref()?.id;
        number.map(|number| SessionNumber { session, number })
    }

    pub(super) fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    pub(super) fn next_reply(&mut self) -> Option<pb::SampleResponse> {
        self.replies.pop_front()
    }

    /// Waits until another stream of the reader takes over. Does not return for a reader without a session.
    pub(super) async fn stopped(&mut self) {
        match &mut self.session {
            Some(session) => session.stopped().await,
            None => std::future::pending().await,
        }
    }

    /// The session, to keep the leases.
    pub(super) fn into_session(self) -> Option<OpenSession> {
        self.session
    }
}

impl SampleStream {
    /// Handles a `Resume`.
    ///
    /// # Errors
    /// The status that the stream ends with.
    pub(super) async fn resume(&mut self, resume: pb::Resume) -> Result<(), Status> {
        if self.resumption.is_complete || self.requests.len() > 0 {
            return Err(Status::invalid_argument(
                "invalid `resume`: it must precede all other requests of its stream",
            ));
        }
        if self.resumption.session.is_none() {
            let keep = Duration::try_from_secs_f64(resume.keep_s).map_err(|_| {
                Status::invalid_argument(format!(
                    "invalid `keep_s`: {}; expected a number of seconds",
                    resume.keep_s
                ))
            })?;
            let keep = keep.min(self.state.lease_timeout);
            let (session, leases) = self.state.readers.open(resume.session, keep).await;
            self.resumption.session = Some(session);
            self.leases = leases;
            self.leases.return_expired();
        }
        self.resumption.requests += 1;
        if self.resumption.requests > MAX_OUTSTANDING + 1 {
            return Err(Status::resource_exhausted(format!(
                "too many leases: a reader continues at most {MAX_OUTSTANDING}"
            )));
        }
        if let Some(lease) = resume.lease {
            let state = self.continue_lease(&lease)?;
            let reply = encode_response(lease.id, Outcome::Lease(state.into()));
            self.resumption.replies.push_back(reply);
        }
        if !resume.more {
            self.leases.retain(&self.resumption.continued);
            self.resumption.is_complete = true;
            let reply = encode_response(0, Outcome::Resumed(pb::Empty {}));
            self.resumption.replies.push_back(reply);
        }
        Ok(())
    }

    /// Continues a lease. If it has ended and its acknowledgement was not handled, leases those of its items again that
    /// no reader has drawn since.
    fn continue_lease(&mut self, lease: &pb::HeldLease) -> Result<LeaseState, Status> {
        let keys = decode_u64s("keys_le", &lease.keys_le);
        let keys = keys.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if keys.len() > MAX_ITEMS_PER_BATCH as usize {
            return Err(Status::resource_exhausted(format!(
                "too many keys: a lease has at most {MAX_ITEMS_PER_BATCH} items"
            )));
        }
        if let Some(len) = self.leases.num_items(lease.id) {
            self.resumption.continued.insert(lease.id);
            return Ok(if len < keys.len() {
                LeaseState::PartlyHeld
            } else {
                LeaseState::Held
            });
        }
        let table = match self.state.engine.table(&lease.table) {
            Ok(table) => table,
            Err(Error::UnknownTable { .. }) => return Ok(LeaseState::Ended),
            // It is unknown whether the acknowledgement was handled.
            Err(error) => return Err(Status::unavailable(error.to_string())),
        };
        let number = self.resumption.number(lease.number);
        if let Some(number) = number
            && let Some(durable) = table.until_acknowledged(number)
        {
            self.barriers.add_acknowledgement(durable);
            if table.options().max_times_sampled == 1 {
                // A crash may have kept a part of a large acknowledgement from the log.
                let rest = table.lease_again(&keys);
                self.barriers.add_acknowledgement(rest.acknowledge());
            }
            return Ok(LeaseState::Acknowledged);
        }
        let again = table.lease_again(&keys);
        let state = match again.len() {
            0 => return Ok(LeaseState::Ended),
            len if len == keys.len() => LeaseState::Held,
            _ => LeaseState::PartlyHeld,
        };
        self.leases.add(lease.id, again, self.state.lease_timeout);
        self.resumption.continued.insert(lease.id);
        Ok(state)
    }
}
