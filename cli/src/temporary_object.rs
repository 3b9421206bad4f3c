//! Creates an object that is needed only for a short time, and deletes it again. The name is chosen
//! here, so that the object can be deleted even if the host's answer is lost.

use std::cell::Cell;
use std::fmt::Debug;
use std::mem::replace;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::{DeleteParams, PostParams};
use rand::RngExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::SignalKind;
use tokio::time::{Instant, sleep};

use crate::session::{FIELD_MANAGER, Session};
use crate::signals::Signals;
use crate::{Error, output};

/// How long a failing request is retried.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// After this time a request without an answer has either taken effect or never will.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// Alphabet of Kubernetes' generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Number of random characters at the end of a name: 38 bits, so that two callers do not choose the
/// same name. A Cluster's name has at most 40 characters, and a JoinToken's at most 58, so they
/// fit.
const RANDOM_CHARACTERS: usize = 8;

/// A namespaced object.
pub(crate) trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

/// Creates the object with a random name; returns that name and the signal that arrived meanwhile. If the request
/// failed but may have taken effect, the object is deleted. `fate` tells the user what happens to
/// an object that could not be deleted.
pub(crate) async fn create_temporary<K: Object>(
    session: &Session,
    signals: &mut Signals,
    prefix: &str,
    mut object: K,
    doing: &str,
    fate: &str,
) -> Result<(String, Option<SignalKind>), Error> {
    let name = random_name(prefix);
    object.meta_mut().name = Some(name.clone());
    let mut may_exist = false;
    let error = match create(session, signals, &object, doing, &mut may_exist).await {
        Ok(signal) => return Ok((name, signal)),
        Err(error) => error,
    };
    let is_left = match &error {
        Error::Interrupted(_) => true,
        _ => may_exist && !undo::<K>(session, signals, &name).await,
    };
    if is_left {
        output::print_message(&format!("{} {name} may have been created; {fate}", K::kind(&())));
    }
    Err(error)
}

fn random_name(prefix: &str) -> String {
    let mut random = rand::rng();
    let drawn = (0..RANDOM_CHARACTERS).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    prefix.chars().chain(drawn).collect()
}

/// Waits for the host's answer, until the second signal. Sets `may_exist` if a request may have
/// created the object although it failed.
async fn create<K: Object>(
    session: &Session,
    signals: &mut Signals,
    object: &K,
    doing: &str,
    may_exist: &mut bool,
) -> Result<Option<SignalKind>, Error> {
    let parameters = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let (api, begun) = (session.api::<K>(), Instant::now());
    let is_over = Cell::new(false);
    let made = async {
        loop {
            let error = match session.request_once(doing, api.create(&parameters, object)).await {
                Ok(_) => return Ok(()),
                Err(Error::Refused { status, .. }) if *may_exist && status.is_already_exists() => return Ok(()),
                Err(error) => error,
            };
            *may_exist |= error.may_have_succeeded();
            if !error.is_overloaded() || begun.elapsed() > PATIENCE {
                return Err(error);
            }
            sleep(PAUSE).await;
            if is_over.get() {
                return Err(error);
            }
        }
    };
    let mut made = pin!(made);
    let signal = tokio::select! {
        made = &mut made => return made.map(|()| None),
        signal = signals.next() => signal,
    };
    is_over.set(true);
    output::print_message("interrupted; waiting for the host's answer");
    tokio::select! {
        made = made => made.map(|()| Some(signal)),
        _ = signals.next() => Err(Error::Interrupted(signal)),
    }
}

/// Deletes an object that may have been created, until a signal. Returns whether nothing is left.
async fn undo<K: Object>(session: &Session, signals: &mut Signals, name: &str) -> bool {
    let deleted = async {
        if delete::<K>(session, name).await? {
            return Ok(true);
        }
        // The create request may still have been in progress.
        sleep(SETTLE_TIME).await;
        delete::<K>(session, name).await
    };
    let deleted = tokio::select! {
        deleted = deleted => deleted,
        _ = signals.next() => return false,
    };
    match deleted {
        Ok(true) => output::print_message(&format!("{} {name} is being deleted", K::kind(&()))),
        Ok(false) => {}
        Err(error) => {
            output::print_message(&error.with_causes());
            return false;
        }
    }
    true
}

/// Deletes an object and returns whether it existed. Retries for a while, unless the host's answer
/// is final.
pub(crate) async fn delete<K: Object>(session: &Session, name: &str) -> Result<bool, Error> {
    let (doing, parameters) = (format!("deleting {} {name}", K::kind(&())), DeleteParams::default());
    let (api, begun) = (session.api::<K>(), Instant::now());
    let mut is_reported = false;
    loop {
        match session.request_once(&doing, api.delete(name, &parameters)).await {
            Ok(_) => return Ok(true),
            Err(Error::Refused { status, .. }) if status.code == 404 => return Ok(false),
            Err(error) if error.may_pass() && begun.elapsed() < PATIENCE => {
                if !replace(&mut is_reported, true) {
                    output::print_message(&format!("{}; trying again", error.with_causes()));
                }
            }
            Err(error) => return Err(error),
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_and_are_labels() {
        let names: BTreeSet<_> = (0..1000).map(|_| random_name("run-")).collect();
        assert_eq!(names.len(), 1000);
        for name in names {
            assert!(name.len() == 12 && name.starts_with("run-"), "{name}");
            assert!(yoke_api::names::is_label(&name), "{name}");
        }
    }
}
