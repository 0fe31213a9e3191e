//! The codec of every call: prost's codec, which decodes a message only after a check of its decoded size.

use std::marker::PhantomData;

use bytes::Buf as _;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::decoded_size::{DecodedSize, check_decoded_size};

/// Initial capacity of a stream's buffers in bytes, allocated before the first message.
const BUFFER_BYTES: usize = 1 << 10;

/// tonic collects encoded messages, and passes them to the transport once they have this many bytes together, or no
/// further message is ready. This is tonic's default.
const SEND_BYTES: usize = 32 << 10;

/// Encodes messages of type `T`, and decodes messages of type `U` after a check of their decoded size.
#[derive(Debug)]
pub struct SizeCheckedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SizeCheckedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SizeCheckedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + DecodedSize + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = PreallocatingEncoder<T>;
    type Decoder = SizeCheckedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        PreallocatingEncoder(ProstEncoder::new(buffer_settings()))
    }

    fn decoder(&mut self) -> Self::Decoder {
        SizeCheckedDecoder(ProstDecoder::new(buffer_settings()))
    }
}

fn buffer_settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, SEND_BYTES)
}

/// Grows the buffer to fit the whole message before it encodes the message, so that the buffer grows only once.
#[derive(Debug)]
pub struct PreallocatingEncoder<T>(ProstEncoder<T>);

impl<T: Message> Encoder for PreallocatingEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        self.0.encode(message, buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Rejects messages whose decoded size exceeds their limit, with `RESOURCE_EXHAUSTED`.
#[derive(Debug)]
pub struct SizeCheckedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + DecodedSize> Decoder for SizeCheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes each message as one contiguous slice.
        check_decoded_size::<U>(message.chunk()).map_err(|problem| {
            Status::resource_exhausted(format!("{problem}; send its content in several messages"))
        })?;
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
