//! Messages in and out of the transport: as prost writes them, weighed before they are read.

use std::marker::PhantomData;

use bytes::Buf as _;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::weight::{self, Weighed};

/// What both ends of every call use.
#[derive(Debug)]
pub struct WeighingCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WeighingCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for WeighingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Weighed + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = WeighingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        WeighingDecoder(ProstDecoder::default())
    }
}

/// Refuses what would take too much memory.
#[derive(Debug)]
pub struct WeighingDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + Weighed> Decoder for WeighingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The transport hands a message over in one piece.
        weight::check::<U>(message.chunk()).map_err(Status::resource_exhausted)?;
        self.0.decode(message)
    }
}
