//! RangeStream: a range in pages. A page is read when HTTP/2 has room for it, that is when the client took what came
//! before; nothing runs in between, and a client that goes leaves nothing behind.
//!
//! kube-apiserver 1.37 lists by it unless the answer to the first try is Unimplemented, whatever version `Status` says.

use super::ends_stream;
use crate::proto::etcdserverpb as pb;
use crate::range::walk::{Step, Walk};
use crate::refusal::Refusal;
use crate::state::State;
use crate::store::Store;
use crate::validate;
use futures::stream::{BoxStream, StreamExt, unfold};
use std::sync::Arc;
use tokio::task::yield_now;
use tonic::Status;

/// The answers to one request.
pub(super) type Pages = BoxStream<'static, Result<pb::RangeStreamResponse, Status>>;

/// Reads the first page, which says what all of them are read at.
pub(super) async fn begin(store: Arc<Store>, request: &pb::RangeRequest, needs_leader: bool) -> Result<Pages, Refusal> {
    validate::check_range_stream(request)?;
    let read = |state: &State| Walk::begin(&state.mvcc, request);
    let begun = if request.serializable {
        read(&store.read())
    } else {
        store.read_latest(read).await?
    };
    let (walk, first) = begun?;
    let sending = Sending {
        store,
        walk,
        first: Some(first),
        needs_leader,
    };
    let next = |sending: Option<Sending>| async move {
        let mut sending = sending?;
        Some(match sending.next().await {
            Ok((answer, true)) => (Ok(part(answer)), None),
            Ok((answer, false)) => (Ok(part(answer)), Some(sending)),
            Err(refusal) => (Err(refusal.into()), None),
        })
    };
    Ok(unfold(Some(sending), next).boxed())
}

fn part(answer: pb::RangeResponse) -> pb::RangeStreamResponse {
    pb::RangeStreamResponse {
        range_response: Some(answer),
    }
}

/// A range that is being sent.
struct Sending {
    store: Arc<Store>,
    walk: Walk,
    /// What was read before the answers began.
    first: Option<Step>,
    needs_leader: bool,
}

impl Sending {
    /// The next part, and whether it is the last one.
    async fn next(&mut self) -> Result<(pb::RangeResponse, bool), Refusal> {
        loop {
            let step = match self.first.take() {
                Some(step) => step,
                None => self.step()?,
            };
            match step {
                Step::Looking => yield_now().await,
                Step::Page(kvs) => {
                    let answer = pb::RangeResponse {
                        kvs,
                        ..Default::default()
                    };
                    return Ok((answer, false));
                }
                Step::Last(mut answer) => {
                    answer.header = Some(self.store.header(self.walk.visible()));
                    return Ok((answer, true));
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, Refusal> {
        if let Some(refusal) = ends_stream(&self.store, self.needs_leader) {
            return Err(refusal);
        }
        self.walk.step(&self.store.read().mvcc)
    }
}
