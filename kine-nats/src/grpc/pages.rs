//! Ranges that take a while.
//!
//! Range: a range that is read in pieces is one response at one revision, which is pinned. Writes
//! and compactions meanwhile do not change it, just as an etcd finishes a read that it has started.
//! Compactions wait for the reads that started before them.
//!
//! RangeStream: a range in pages. A page is read when HTTP/2 has room for it, that is, after the
//! client consumed the one before. No task runs in between, and a client that disconnects leaves
//! nothing behind.
//!
//! kube-apiserver 1.37 lists with RangeStream unless its first attempt returns Unimplemented,
//! whatever version `Status` reports.

use crate::error::RpcError;
use crate::grpc::node::unavailable_error;
use crate::mvcc::Pin;
use crate::proto::etcdserverpb as pb;
use crate::range::gather::Gathering;
use crate::range::walk::{Step, Walk};
use crate::range::{check_revision, revision};
use crate::state::State;
use crate::store::Store;
use crate::validate;
use futures::stream::{BoxStream, StreamExt, unfold};
use std::sync::Arc;
use tokio::task::yield_now;
use tonic::Status;

/// The responses to one request.
pub(super) type Pages = BoxStream<'static, Result<pb::RangeStreamResponse, Status>>;

/// Reads the first page, which fixes the revision of all pages.
pub(super) async fn open(store: Arc<Store>, request: &pb::RangeRequest, needs_leader: bool) -> Result<Pages, RpcError> {
    validate::check_range_stream(request)?;
    let read = |state: &State| Walk::start(&state.mvcc, request);
    let started = if request.serializable {
        read(&store.read())
    } else {
        store.read_latest(read).await?
    };
    let (walk, first) = started?;
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
            Err(error) => (Err(error.into()), None),
        })
    };
    Ok(unfold(Some(sending), next).boxed())
}

/// Reads a range as one response, without blocking writers for the whole read.
pub(super) async fn read_complete(store: &Store, request: &pb::RangeRequest) -> Result<pb::RangeResponse, RpcError> {
    let start = |State { mvcc, .. }: &State| {
        let visible = mvcc.visible();
        check_revision(request.revision, visible, mvcc.compacted())?;
        let mut gathering = Gathering::new(request, revision(request, visible));
        let pin = gathering.step(mvcc).then(|| mvcc.pin(gathering.revision()));
        Ok::<_, RpcError>((gathering, pin, visible))
    };
    let started = if request.serializable {
        start(&store.read())
    } else {
        store.read_latest(start).await?
    };
    let (mut gathering, pin, visible) = started?;
    if let Some(pin) = pin {
        while step(store, &mut gathering, &pin)? {
            yield_now().await;
        }
    }
    let mut answer = gathering.finish();
    answer.header = Some(store.header(visible));
    Ok(answer)
}

fn step(store: &Store, gathering: &mut Gathering<'_>, pin: &Pin) -> Result<bool, RpcError> {
    let mvcc = &store.read().mvcc;
    // A state that was reread from the log has no pins. It returns the same data as long as it can
    // read the revision at all.
    let readable = mvcc.compacted()..=mvcc.visible();
    if !mvcc.owns_pin(pin) && !readable.contains(&gathering.revision()) {
        return Err(RpcError::LeaderChanged);
    }
    Ok(gathering.step(mvcc))
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
    /// The step that was read before the responses started.
    first: Option<Step>,
    needs_leader: bool,
}

impl Sending {
    /// The next part, and whether it is the last one.
    async fn next(&mut self) -> Result<(pb::RangeResponse, bool), RpcError> {
        loop {
            let step = match self.first.take() {
                Some(step) => step,
                None => self.step()?,
            };
            match step {
                Step::Pending => yield_now().await,
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

    fn step(&mut self) -> Result<Step, RpcError> {
        if let Some(error) = unavailable_error(&self.store, self.needs_leader) {
            return Err(error);
        }
        self.walk.step(&self.store.read().mvcc)
    }
}

#[cfg(test)]
mod tests;
