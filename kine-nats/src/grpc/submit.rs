//! Requests that the writer answers.

use crate::command::{Answer, Command};
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use tonic::Status;

/// A response type that a call expects from the writer.
pub(super) trait FromAnswer: Sized {
    /// Unwraps the answer if it is of this type.
    fn take(answer: Answer) -> Option<Self>;
    fn header(&mut self) -> &mut Option<pb::ResponseHeader>;
}

macro_rules! wanted {
    ($($kind:ident: $answer:ident),*) => {
        $(
            impl FromAnswer for pb::$answer {
                fn take(answer: Answer) -> Option<Self> {
                    match answer {
                        Answer::$kind(answer) => Some(answer),
                        _ => None,
                    }
                }

                fn header(&mut self) -> &mut Option<pb::ResponseHeader> {
                    &mut self.header
                }
            }
        )*
    };
}

wanted!(
    Put: PutResponse,
    DeleteRange: DeleteRangeResponse,
    Txn: TxnResponse,
    Compact: CompactionResponse,
    Grant: LeaseGrantResponse,
    Revoke: LeaseRevokeResponse,
    KeepAlive: LeaseKeepAliveResponse,
    TimeToLive: LeaseTimeToLiveResponse,
    Leases: LeaseLeasesResponse
);

/// Submits a request to the writer, and completes the header of the answer, which holds only the
/// revision.
pub(super) async fn submit<A: FromAnswer>(store: &Store, command: Command) -> Result<A, Status> {
    let answer = store.submit(command).await?;
    let mut answer = A::take(answer).ok_or_else(|| Status::internal("the writer answered another request"))?;
    let header = answer.header();
    let revision = header.as_ref().map_or(0, |header| header.revision);
    *header = Some(store.header(revision));
    Ok(answer)
}
