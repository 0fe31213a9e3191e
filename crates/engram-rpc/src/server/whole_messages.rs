//! A request's body that passes each message on once all of its bytes have arrived.
//!
//! A gRPC message begins with its length, and tonic allocates that many bytes as soon as it has read the length. With
//! this body, all of these bytes have arrived by then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use tonic::Status;
use tonic::body::Body;

/// Bytes of a message's prefix: a flag, and the length of the message.
const PREFIX_BYTES: usize = 5;

/// Smaller pieces of a message are copied into one buffer, because each piece may keep a larger buffer alive.
const MIN_PIECE_BYTES: usize = 4 << 10;

/// Wraps the body of a request.
#[derive(Debug)]
pub(super) struct WholeMessages {
    body: Body,
    max_message_bytes: usize,
    /// Prefix of the incomplete message, itself possibly incomplete.
    prefix: BytesMut,
    /// Number of bytes that the incomplete message lacks, once its prefix is complete.
    missing: usize,
    /// The bytes of the incomplete message after its prefix.
    pieces: Vec<Bytes>,
    /// The small pieces after `pieces`, copied into one buffer.
    small_pieces: BytesMut,
    /// Bytes to pass on: complete messages, and all bytes from an invalid prefix on.
    complete: VecDeque<Bytes>,
    /// True after a prefix that makes tonic end the stream. All later bytes are passed on at once.
    is_invalid: bool,
}

impl WholeMessages {
    /// Wraps a body whose messages may have up to `max_message_bytes` bytes.
    pub(super) fn new(body: Body, max_message_bytes: usize) -> Self {
        Self {
            body,
            max_message_bytes,
            prefix: BytesMut::new(),
            missing: 0,
            pieces: Vec::new(),
            small_pieces: BytesMut::new(),
            complete: VecDeque::new(),
            is_invalid: false,
        }
    }

    /// Adds received bytes.
    fn push(&mut self, mut data: Bytes) {
        if self.prefix.is_empty() && !self.is_invalid {
            let whole = data.split_to(self.whole_messages_bytes(&data));
            if !whole.is_empty() {
                self.complete.push_back(whole);
            }
        }
        while !data.is_empty() {
            if self.is_invalid {
                self.complete.push_back(data);
                return;
            }
            if self.prefix.len() < PREFIX_BYTES {
                let len = data.len().min(PREFIX_BYTES - self.prefix.len());
                self.prefix.extend_from_slice(&data.split_to(len));
                if self.prefix.len() < PREFIX_BYTES {
                    return;
                }
                self.read_prefix();
                if self.is_invalid {
                    continue;
                }
            }
            let piece = data.split_to(data.len().min(self.missing));
            self.missing -= piece.len();
            self.push_piece(piece);
            if self.missing == 0 {
                self.complete.push_back(self.prefix.split().freeze());
                self.complete.extend(self.pieces.drain(..));
            }
        }
    }

    /// Number of bytes of the complete messages at the beginning of `data`.
    fn whole_messages_bytes(&self, data: &[u8]) -> usize {
        let mut whole = 0;
        while let Some((prefix, rest)) = data[whole..].split_first_chunk()
            && let Some(len) = self.message_bytes(*prefix)
            && len <= rest.len()
        {
            whole += PREFIX_BYTES + len;
        }
        whole
    }

    /// Length of the message after a prefix; `None` if tonic rejects it.
    fn message_bytes(&self, [flag, len @ ..]: [u8; PREFIX_BYTES]) -> Option<usize> {
        let len = u32::from_be_bytes(len) as usize;
        (flag == 0 && len <= self.max_message_bytes).then_some(len)
    }

    /// Reads the prefix, which is complete, of an incomplete message.
    fn read_prefix(&mut self) {
        let prefix = self.prefix.first_chunk();
        if let Some(len) = prefix.and_then(|prefix| self.message_bytes(*prefix)) {
            self.missing = len;
        } else {
            self.is_invalid = true;
            self.complete.push_back(self.prefix.split().freeze());
        }
    }

    fn push_piece(&mut self, piece: Bytes) {
        if self.missing > 0 && piece.len() < MIN_PIECE_BYTES {
            self.small_pieces.extend_from_slice(&piece);
            return;
        }
        if !self.small_pieces.is_empty() {
            self.pieces.push(self.small_pieces.split().freeze());
        }
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }
}

impl HttpBody for WholeMessages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(data) = self.complete.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.push(data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                None if !self.prefix.is_empty() => {
                    self.prefix.clear();
                    let text = "the request ended in the middle of a message";
                    return Poll::Ready(Some(Err(Status::internal(text))));
                }
                end => return Poll::Ready(end),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn message(payload: &[u8]) -> Vec<u8> {
        let mut message = vec![0];
        message.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        message.extend_from_slice(payload);
        message
    }

    /// Wraps a body that consists of these data frames.
    fn body(frames: Vec<Vec<u8>>) -> WholeMessages {
        let frames = frames
            .into_iter()
            .map(|data| Frame::data(Bytes::from(data)));
        let frames = futures_util::stream::iter(frames.map(Ok::<_, Status>));
        WholeMessages::new(Body::new(StreamBody::new(frames)), 10_000)
    }

    #[tokio::test]
    async fn messages_pass_unchanged_however_they_are_split() {
        let payloads = [vec![], vec![1; 3], vec![2; 9_000], vec![3; 5_000], vec![4]];
        let bytes: Vec<u8> = payloads
            .iter()
            .flat_map(|payload| message(payload))
            .collect();
        for size in [1, 2, 5, 7, 4_000, 4_096, 6_000, bytes.len()] {
            let frames = bytes.chunks(size).map(<[u8]>::to_vec).collect();
            let passed = body(frames).collect().await.unwrap().to_bytes();
            assert!(passed == bytes, "frames of {size} bytes");
        }
    }

    #[tokio::test]
    async fn complete_messages_that_arrive_together_are_passed_on_together() {
        let complete = [message(&[1; 3]), message(&[2; 5_000])].concat();
        let last = message(&[3; 6_000]);
        let (start, end) = last.split_at(2_000);
        let mut body = body(vec![[&complete, start].concat(), end.to_vec()]);
        let first = body.frame().await.unwrap().unwrap();
        assert!(first.into_data().unwrap() == complete);
        assert!(body.collect().await.unwrap().to_bytes() == last);
    }

    #[tokio::test]
    async fn nothing_of_an_incomplete_message_is_passed_on() {
        let incomplete = message(&[7; 8_000]);
        for len in [1, 5, 6, 8_004] {
            let mut body = body(vec![message(&[1]), incomplete[..len].to_vec()]);
            let mut passed = Vec::new();
            let status = loop {
                match body.frame().await.unwrap() {
                    Ok(frame) => passed.extend_from_slice(frame.data_ref().unwrap()),
                    Err(status) => break status,
                }
            };
            assert_eq!(passed, message(&[1]));
            assert_eq!(
                status.message(),
                "the request ended in the middle of a message"
            );
            assert!(body.frame().await.is_none());
        }
    }

    #[tokio::test]
    async fn bytes_that_the_transport_rejects_are_passed_on_at_once() {
        for prefix in [[0, 0, 0, 0x27, 0x11], [1, 0, 0, 0, 9], [9, 0, 0, 0, 9]] {
            let passed = body(vec![prefix.to_vec(), vec![5; 3]]).collect().await;
            assert_eq!(passed.unwrap().to_bytes(), [&prefix[..], &[5; 3]].concat());
        }
    }
}
