//! The codec of the generated services: protobuf, with a count of the bytes in each direction.

use crate::metrics::BYTES;
use bytes::{Buf, BufMut};
use prost::Message;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// A codec that counts bytes.
#[derive(Debug)]
pub(crate) struct Wire<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Wire<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for Wire<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Counting<ProstEncoder<T>>;
    type Decoder = Counting<ProstDecoder<U>>;

    fn encoder(&mut self) -> Self::Encoder {
        Counting(ProstCodec::<T, U>::default().encoder())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Counting(ProstCodec::<T, U>::default().decoder())
    }
}

/// The encoder or the decoder.
#[derive(Debug)]
pub(crate) struct Counting<C>(C);

impl<C: Encoder<Error = Status>> Encoder for Counting<C> {
    type Item = C::Item;
    type Error = Status;

    fn encode(&mut self, item: C::Item, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let room = into.remaining_mut();
        let encoded = self.0.encode(item, into);
        BYTES
            .1
            .fetch_add((room - into.remaining_mut()) as u64, Ordering::Relaxed);
        encoded
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

impl<C: Decoder<Error = Status>> Decoder for Counting<C> {
    type Item = C::Item;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<C::Item>, Status> {
        BYTES.0.fetch_add(from.remaining() as u64, Ordering::Relaxed);
        self.0.decode(from)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
