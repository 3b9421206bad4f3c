//! The streams of a Cluster, created and inspected by the operator's own user in its account.

use std::time::Duration;

use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use serde::Serialize;
use serde::de::DeserializeOwned;
use yoke_api::ClusterId;

use crate::nats::account::{Account, Size};
use crate::nats::limits;
use crate::nats::server::{Nats, NatsError};

/// `stream not found` of nats-server.
const NOT_FOUND: u64 = 10059;
/// `JetStream not enabled for account` of nats-server. The server may also not answer at all.
const NO_JETSTREAM: u64 = 10039;
// The store detects duplicates with its own fence, so the server need not remember message IDs for
// long.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(1);

/// An empty request: NATS accepts `{}`, but not `null`.
#[derive(Serialize)]
struct Nothing {}

/// Desired state of a Cluster's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamsPlan {
    /// The Cluster's identity.
    pub id: ClusterId,
    /// Storage requirements.
    pub size: Size,
}

/// A connection that may create, change and inspect the streams of one account. It closes when
/// dropped.
#[derive(Debug)]
pub struct Provisioner {
    context: Context,
    is_clustered: bool,
}

/// Pushes a Cluster's account to NATS, and creates or updates its streams. Returns the bytes in
/// them.
///
/// - If the Cluster `has_state` and the log is missing, the result is [`NatsError::LogLost`] and no
///   stream is created.
/// - If the streams hold too much for a lower quota, none is changed.
pub async fn ensure(nats: &Nats, id: &ClusterId, account: &Account, has_state: bool) -> Result<i64, NatsError> {
    let is_larger = nats.ensure_account(id, account).await?;
    let wanted = limits::disk_storage(account.size);
    let provisioner = Provisioner::connect(nats, &account.public_key).await?;
    let mut granted = provisioner.limit().await?;
    if granted == 0 {
        // A server that had no room when it first saw the claims tries again only when they are
        // pushed again.
        nats.limit_account(id, account, wanted).await?;
        granted = provisioner.limit().await?;
    }
    if granted < wanted {
        // The stored claims promise more. After a restart the server would honor them, and not its
        // promise to an account that it happens to load later. The claim is left only to data that
        // is not reachable now.
        if granted > 0 || !has_state {
            nats.limit_account(id, account, granted).await?;
        }
        return Err(NatsError::NoRoom { wanted, granted });
    }
    let plan = StreamsPlan {
        id: id.clone(),
        size: account.size,
    };
    let bytes = provisioner.ensure(&plan, has_state).await?;
    if is_larger {
        nats.limit_account(id, account, wanted).await?;
    }
    Ok(bytes)
}

/// Configuration of the log stream.
pub fn build_log(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.stream(),
        subjects: vec![plan.id.log_subject()],
        max_bytes: limits::log_bytes(plan.size.quota),
        ..base(plan)
    }
}

/// Configuration of the snapshot stream.
pub fn build_snapshots(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.snapshot_stream(),
        subjects: vec![plan.id.snapshot_subjects()],
        max_bytes: limits::snapshot_bytes(plan.size.quota),
        ..base(plan)
    }
}

/// Configuration of the stream for every other snapshot. It is created if a store has no replicas
/// to replace a corrupt file. It is never replicated: a store with replicas writes no snapshots to
/// it.
pub fn build_spare(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.spare_stream(),
        subjects: vec![plan.id.spare_subjects()],
        max_bytes: limits::spare_bytes(plan.size.quota),
        num_replicas: 1,
        ..base(plan)
    }
}

/// Returns whether a store with this many replicas uses a stream for every other snapshot.
pub fn has_spare(replicas: usize) -> bool {
    replicas == 1
}

fn base(plan: &StreamsPlan) -> Config {
    Config {
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: plan.size.replicas,
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        max_message_size: -1,
        duplicate_window: DUPLICATE_WINDOW,
        // Messages can be removed only from the beginning of a stream, or all of one subject.
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    }
}

/// Returns the configuration to update to, if a field that the operator owns differs.
fn plan_update(current: &Config, wanted: &Config) -> Option<Config> {
    let same = current.subjects == wanted.subjects
        && current.max_bytes == wanted.max_bytes
        && current.num_replicas == wanted.num_replicas
        && current.allow_direct == wanted.allow_direct
        && current.deny_delete == wanted.deny_delete;
    (!same).then(|| Config {
        subjects: wanted.subjects.clone(),
        max_bytes: wanted.max_bytes,
        num_replicas: wanted.num_replicas,
        allow_direct: wanted.allow_direct,
        deny_delete: wanted.deny_delete,
        ..current.clone()
    })
}

/// Checks that a stream holds little enough to be reduced to its new size.
fn check_size(wanted: &Config, found: Option<&Info>, quota: i64, most: i64) -> Result<(), NatsError> {
    let Some(info) = found else { return Ok(()) };
    let bytes = i64::try_from(info.state.bytes).unwrap_or(i64::MAX);
    if wanted.max_bytes >= info.config.max_bytes || bytes <= most {
        return Ok(());
    }
    Err(NatsError::InUse {
        stream: wanted.name.clone(),
        quota,
        bytes,
        most,
    })
}

impl Provisioner {
    /// Connects in an account that the server has.
    pub async fn connect(nats: &Nats, account: &str) -> Result<Self, NatsError> {
        let client = nats.connect_account(account).await?;
        Ok(Self {
            is_clustered: client.server_info().cluster.is_some(),
            context: jetstream::new(client),
        })
    }

    /// Returns the bytes that the server grants the account; 0 if it has no JetStream. A clustered
    /// server refuses no limit, and the server that answers may not have the last claims yet.
    /// Therefore clustered servers are not queried.
    async fn limit(&self) -> Result<i64, NatsError> {
        if self.is_clustered {
            return Ok(i64::MAX);
        }
        let info: Result<jetstream::account::Account, _> = self
            .request("inspecting the account".into(), "INFO".into(), &Nothing {})
            .await;
        match info {
            Ok(info) => Ok(info.limits.max_storage.unwrap_or(i64::MAX)),
            Err(NatsError::JetStream { code: NO_JETSTREAM, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Creates or updates the streams; see [`ensure`].
    pub async fn ensure(&self, plan: &StreamsPlan, has_state: bool) -> Result<i64, NatsError> {
        let (log, spare, quota) = (build_log(plan), build_spare(plan), plan.size.quota);
        let log_found = self.find(&log.name).await?;
        if has_state && log_found.is_none() {
            return Err(NatsError::LogLost { stream: log.name });
        }
        let snapshots = build_snapshots(plan);
        let snapshots_found = self.find(&snapshots.name).await?;
        let spare_found = self.find(&spare.name).await?;
        // A store that got replicas still has this stream: its running control plane may still use
        // it, and its reservation counts.
        let needs_spare = has_spare(plan.size.replicas) || spare_found.is_some();
        // The store retains two snapshots. With two streams, each has one.
        let retained = if has_spare(plan.size.replicas) { 1 } else { 2 };
        let mut steps = vec![
            (log, log_found, limits::most_log(quota)),
            (snapshots, snapshots_found, limits::most_snapshots(quota, retained)),
        ];
        if needs_spare {
            steps.push((spare, spare_found, limits::most_snapshots(quota, 1)));
        }
        // All checks come before the first change: the store relies on the size of its log stream.
        for (wanted, found, most) in &steps {
            check_size(wanted, found.as_ref(), quota, *most)?;
        }
        let mut bytes = 0_u64;
        for (wanted, found, _) in steps {
            bytes = bytes.saturating_add(self.ensure_one(&wanted, found).await?.state.bytes);
        }
        Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    async fn ensure_one(&self, wanted: &Config, found: Option<Info>) -> Result<Info, NatsError> {
        let name = &wanted.name;
        match found {
            Some(info) => match plan_update(&info.config, wanted) {
                None => Ok(info),
                Some(update) => {
                    self.request(
                        format!("updating stream {name}"),
                        format!("STREAM.UPDATE.{name}"),
                        &update,
                    )
                    .await
                }
            },
            None => {
                self.request(
                    format!("creating stream {name}"),
                    format!("STREAM.CREATE.{name}"),
                    wanted,
                )
                .await
            }
        }
    }

    /// Returns a stream, if it exists.
    async fn find(&self, name: &str) -> Result<Option<Info>, NatsError> {
        let found = self
            .request(
                format!("inspecting stream {name}"),
                format!("STREAM.INFO.{name}"),
                &Nothing {},
            )
            .await;
        match found {
            Ok(info) => Ok(Some(info)),
            Err(NatsError::JetStream { code: NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn request<P: Serialize, T: DeserializeOwned>(
        &self,
        what: String,
        subject: String,
        payload: &P,
    ) -> Result<T, NatsError> {
        match self.context.request(subject, payload).await {
            Ok(Response::Ok(value)) => Ok(value),
            Ok(Response::Err { error }) => Err(NatsError::JetStream {
                what,
                code: error.error_code().0,
                source: error.into(),
            }),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(NatsError::JetStream {
                what,
                code: NO_JETSTREAM,
                source: "the account has no JetStream".into(),
            }),
            Err(error) => Err(NatsError::JetStream {
                what,
                code: 0,
                source: error.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> StreamsPlan {
        StreamsPlan {
            id: "bcdfghjk24".parse().expect("valid"),
            size: Size {
                quota: 1 << 20,
                replicas: 1,
            },
        }
    }

    #[test]
    fn streams_cannot_lose_single_messages() {
        let log = build_log(&plan());
        assert_eq!(log.name, "KINE_bcdfghjk24");
        assert_eq!(log.subjects, ["kine.bcdfghjk24.log"]);
        assert_eq!(log.max_bytes, (2 << 20) + (64 << 20));
        assert!(log.deny_delete && !log.deny_purge && log.allow_direct);
        let snapshots = build_snapshots(&plan());
        assert_eq!(snapshots.subjects, ["kine.bcdfghjk24.snap.>"]);
        assert!(snapshots.deny_delete && !snapshots.deny_purge);
    }

    #[test]
    fn only_a_store_without_replicas_has_a_second_stream_for_snapshots() {
        let spare = build_spare(&plan());
        assert_eq!(spare.name, "KINE_SPARE_bcdfghjk24");
        assert_eq!(spare.subjects, ["kine.bcdfghjk24.spare.>"]);
        assert_eq!(spare.max_bytes, (2 << 20) + (64 << 20));
        let mut replicated = plan();
        replicated.size.replicas = 3;
        assert!(has_spare(plan().size.replicas) && !has_spare(replicated.size.replicas));
        assert_eq!(build_spare(&replicated).num_replicas, 1);
    }

    #[test]
    fn updates_change_only_the_fields_of_the_operator() {
        let mut current = build_log(&plan());
        current.metadata.insert("_nats.ver".into(), "2.15.2".into());
        assert!(plan_update(&current, &build_log(&plan())).is_none());
        let mut larger = plan();
        larger.size.quota = 2 << 20;
        let update = plan_update(&current, &build_log(&larger)).unwrap();
        assert_eq!(update.max_bytes, (4 << 20) + (64 << 20));
        assert_eq!(update.metadata, current.metadata);
        current.deny_delete = false;
        assert!(plan_update(&current, &build_log(&plan())).unwrap().deny_delete);
    }
}
