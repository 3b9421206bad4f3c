//! Makes an object whose name comes with the host's answer, and by which alone it can be deleted again.

use std::fmt::Debug;
use std::pin::pin;

use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::SignalKind;

use crate::session::Session;
use crate::signals::Signals;
use crate::{Error, FIELD_MANAGER, output};

/// Makes it: its name, and the signal that came meanwhile. `may_exist` is said where it is not known what there is.
pub(crate) async fn make<K>(
    session: &Session,
    signals: &mut Signals,
    (api, object): (&Api<K>, &K),
    doing: &str,
    may_exist: &str,
) -> Result<(String, Option<SignalKind>), Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let asked = async {
        let asked = session.ask(doing, api.create(&parameters, object));
        asked.await.inspect_err(|error| {
            if error.leaves_open() {
                output::say(may_exist);
            }
        })
    };
    let mut made = pin!(asked);
    let signal = tokio::select! {
        made = &mut made => return Ok((made?.name_any(), None)),
        signal = signals.next() => signal,
    };
    output::say("interrupted; waiting for the host's answer");
    tokio::select! {
        made = made => Ok((made?.name_any(), Some(signal))),
        _ = signals.next() => {
            output::say(may_exist);
            Err(Error::Interrupted(signal))
        }
    }
}
