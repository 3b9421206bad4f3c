//! Makes an object that is there for no longer than it is needed, and deletes it again. Its name is chosen here, so that it
//! can be deleted whatever becomes of the host's answer.

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

use crate::session::Session;
use crate::signals::Signals;
use crate::{Error, FIELD_MANAGER, output};

/// For how long a request is made again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// By then what the host did not answer is done, or never will be.
const LATE: Duration = Duration::from_secs(3);
/// Kubernetes' own for generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// How many characters of it a name ends in: 38 bits, so that nobody else draws the same ones. After a Cluster's name, which has 40
/// at most, there is room for them in the 58 of a JoinToken's.
const DRAWN: usize = 8;

/// An object of a namespace.
pub(crate) trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

/// Makes it: its name, and the signal that came meanwhile. What may have been made though the host's answer is an error is
/// deleted; `fate` is said of what that does not reach.
pub(crate) async fn make<K: Object>(
    session: &Session,
    signals: &mut Signals,
    (prefix, mut object): (&str, K),
    doing: &str,
    fate: &str,
) -> Result<(String, Option<SignalKind>), Error> {
    let name = draw_name(prefix);
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
        output::say(&format!("{} {name} may have been made; {fate}", K::kind(&())));
    }
    Err(error)
}

fn draw_name(prefix: &str) -> String {
    let mut random = rand::rng();
    let drawn = (0..DRAWN).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    prefix.chars().chain(drawn).collect()
}

/// Waits for the host's answer, until the second signal. `may_exist` becomes whether it may have been made by a request whose
/// answer was another.
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
            let error = match session.ask_once(doing, api.create(&parameters, object)).await {
                Ok(_) => return Ok(()),
                Err(Error::Refused { status, .. }) if *may_exist && status.is_already_exists() => return Ok(()),
                Err(error) => error,
            };
            *may_exist |= error.leaves_open();
            if !error.asks_to_wait() || begun.elapsed() > PATIENCE {
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
    output::say("interrupted; waiting for the host's answer");
    tokio::select! {
        made = made => made.map(|()| Some(signal)),
        _ = signals.next() => Err(Error::Interrupted(signal)),
    }
}

/// Deletes what may have been made, until a signal. Whether nothing is left of it.
async fn undo<K: Object>(session: &Session, signals: &mut Signals, name: &str) -> bool {
    let deleted = async {
        if delete::<K>(session, name).await? {
            return Ok(true);
        }
        // It may have been on its way.
        sleep(LATE).await;
        delete::<K>(session, name).await
    };
    let deleted = tokio::select! {
        deleted = deleted => deleted,
        _ = signals.next() => return false,
    };
    match deleted {
        Ok(true) => output::say(&format!("{} {name} is being deleted", K::kind(&()))),
        Ok(false) => {}
        Err(error) => {
            output::say(&error.with_causes());
            return false;
        }
    }
    true
}

/// Deletes an object, and says whether there was one. Tries for a while, unless the host's answer will stay the same.
pub(crate) async fn delete<K: Object>(session: &Session, name: &str) -> Result<bool, Error> {
    let (doing, parameters) = (format!("deleting {} {name}", K::kind(&())), DeleteParams::default());
    let (api, begun) = (session.api::<K>(), Instant::now());
    let mut is_told = false;
    loop {
        match session.ask_once(&doing, api.delete(name, &parameters)).await {
            Ok(_) => return Ok(true),
            Err(Error::Refused { status, .. }) if status.code == 404 => return Ok(false),
            Err(error) if error.may_pass() && begun.elapsed() < PATIENCE => {
                if !replace(&mut is_told, true) {
                    output::say(&format!("{}; trying again", error.with_causes()));
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
        let names: BTreeSet<_> = (0..1000).map(|_| draw_name("run-")).collect();
        assert_eq!(names.len(), 1000);
        for name in names {
            assert!(name.len() == 12 && name.starts_with("run-"), "{name}");
            assert!(yoke_api::names::is_label(&name), "{name}");
        }
    }
}
