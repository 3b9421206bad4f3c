//! The streams of a Cluster, made and inspected by a user of the operator's own in its account.

use std::time::Duration;

use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use serde::Serialize;
use serde::de::DeserializeOwned;
use yoke_api::ClusterId;

use super::account::{Account, Size};
use super::limits;
use super::server::{Nats, NatsError};

/// `stream not found` of nats-server.
const NOT_FOUND: u64 = 10059;
/// `JetStream not enabled for account` of nats-server, which it says by silence too.
const NO_JETSTREAM: u64 = 10039;
// A store's own fence finds repetitions; the server need not remember message ids for long.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(1);

/// An empty request: NATS takes `{}` for one, and `null` not.
#[derive(Serialize)]
struct Nothing {}

/// How a Cluster's streams should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamsPlan {
    /// The Cluster's identity.
    pub id: ClusterId,
    /// What they must have room for.
    pub size: Size,
}

/// A connection that may make, change and inspect streams of one account; dropped, it ends.
#[derive(Debug)]
pub struct Provisioner {
    context: Context,
    is_clustered: bool,
}

/// Gives NATS a Cluster's account, and makes its streams or changes them to what they should be; returns the bytes that they
/// hold. Where the Cluster `has_state`, a log that is not there is [`NatsError::LogLost`], and none is made. Where they hold too
/// much for a lower quota, none is changed.
pub async fn ensure(nats: &Nats, id: &ClusterId, account: &Account, has_state: bool) -> Result<i64, NatsError> {
    let is_larger = nats.ensure_account(id, account).await?;
    let wanted = limits::disk_storage(account.size);
    let provisioner = Provisioner::connect(nats, &account.public_key).await?;
    let mut given = provisioner.limit().await?;
    if given == 0 {
        // A server that had no room when it met the claims does not look again before they come again.
        nats.limit_account(id, account, wanted).await?;
        given = provisioner.limit().await?;
    }
    if given < wanted {
        // The claims that are stored promise more. After its next start the server would keep that, and not what it has
        // promised to an account that it happens to meet later. Only data that cannot be reached now is left its claim.
        if given > 0 || !has_state {
            nats.limit_account(id, account, given).await?;
        }
        return Err(NatsError::NoRoom { wanted, given });
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

/// The configuration of the log stream.
pub fn build_log(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.stream(),
        subjects: vec![plan.id.log_subject()],
        max_bytes: limits::log_bytes(plan.size.quota),
        ..base(plan)
    }
}

/// The configuration of the snapshot stream.
pub fn build_snapshots(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.snapshot_stream(),
        subjects: vec![plan.id.snapshot_subjects()],
        max_bytes: limits::snapshot_bytes(plan.size.quota),
        ..base(plan)
    }
}

/// The configuration of the stream for every other snapshot. It is made where a store has no replicas that make up for a
/// damaged file, and gets none when the store does: no snapshot comes to it any more.
pub fn build_spare(plan: &StreamsPlan) -> Config {
    Config {
        name: plan.id.spare_stream(),
        subjects: vec![plan.id.spare_subjects()],
        max_bytes: limits::spare_bytes(plan.size.quota),
        num_replicas: 1,
        ..base(plan)
    }
}

/// Whether a store of so many replicas is given a stream for every other snapshot.
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
        // Nothing is dropped but from the beginning, or all of one subject.
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    }
}

/// The configuration to update to, if what is there differs in a field that the operator decides.
fn plan_update(is: &Config, wanted: &Config) -> Option<Config> {
    let same = is.subjects == wanted.subjects
        && is.max_bytes == wanted.max_bytes
        && is.num_replicas == wanted.num_replicas
        && is.allow_direct == wanted.allow_direct
        && is.deny_delete == wanted.deny_delete;
    (!same).then(|| Config {
        subjects: wanted.subjects.clone(),
        max_bytes: wanted.max_bytes,
        num_replicas: wanted.num_replicas,
        allow_direct: wanted.allow_direct,
        deny_delete: wanted.deny_delete,
        ..is.clone()
    })
}

/// Whether a stream holds little enough to be made as small as it should be.
fn check_held(wanted: &Config, found: Option<&Info>, (quota, most): (i64, i64)) -> Result<(), NatsError> {
    let Some(info) = found else { return Ok(()) };
    let held = i64::try_from(info.state.bytes).unwrap_or(i64::MAX);
    if wanted.max_bytes >= info.config.max_bytes || held <= most {
        return Ok(());
    }
    Err(NatsError::InUse {
        stream: wanted.name.clone(),
        quota,
        held,
        most,
    })
}

impl Provisioner {
    /// Connects in an account that the server knows.
    pub async fn connect(nats: &Nats, account: &str) -> Result<Self, NatsError> {
        let client = nats.connect_account(account).await?;
        Ok(Self {
            is_clustered: client.server_info().cluster.is_some(),
            context: jetstream::new(client),
        })
    }

    /// The bytes that the server lets the account reserve; 0 if it has no JetStream. Servers of a cluster refuse no limit,
    /// and who answers for them may not have heard of the last one yet: they are not asked.
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

    /// Makes the streams, or changes them to what they should be; see [`ensure`].
    pub async fn ensure(&self, plan: &StreamsPlan, has_state: bool) -> Result<i64, NatsError> {
        let (log, spare, quota) = (build_log(plan), build_spare(plan), plan.size.quota);
        let log_found = self.find(&log.name).await?;
        if has_state && log_found.is_none() {
            return Err(NatsError::LogLost { stream: log.name });
        }
        let snapshots = build_snapshots(plan);
        let snapshots_found = self.find(&snapshots.name).await?;
        let spare_found = self.find(&spare.name).await?;
        // A store that was given replicas keeps it: its control plane may run on with it, and what it reserves is counted.
        let keeps_spare = has_spare(plan.size.replicas) || spare_found.is_some();
        // Two snapshots are kept, one in each stream where there are two.
        let kept = if has_spare(plan.size.replicas) { 1 } else { 2 };
        let mut steps = vec![
            (log, log_found, limits::most_log(quota)),
            (snapshots, snapshots_found, limits::most_snapshots(quota, kept)),
        ];
        if keeps_spare {
            steps.push((spare, spare_found, limits::most_snapshots(quota, 1)));
        }
        // All of them before one is changed: the store goes by what its log may hold.
        for (wanted, found, most) in &steps {
            check_held(wanted, found.as_ref(), (quota, *most))?;
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
                self.request(format!("making stream {name}"), format!("STREAM.CREATE.{name}"), wanted)
                    .await
            }
        }
    }

    /// A stream, if it is there.
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
    fn updates_touch_what_the_operator_decides() {
        let mut is = build_log(&plan());
        is.metadata.insert("_nats.ver".into(), "2.15.2".into());
        assert!(plan_update(&is, &build_log(&plan())).is_none());
        let mut larger = plan();
        larger.size.quota = 2 << 20;
        let update = plan_update(&is, &build_log(&larger)).unwrap();
        assert_eq!(update.max_bytes, (4 << 20) + (64 << 20));
        assert_eq!(update.metadata, is.metadata);
        is.deny_delete = false;
        assert!(plan_update(&is, &build_log(&plan())).unwrap().deny_delete);
    }
}
