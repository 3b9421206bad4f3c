//! `get`: shows Clusters and Tenants as kubectl does.

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams, ObjectList};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use tokio::time::Instant;
use yoke_api::{Cluster, Tenant};
use yoke_view::render::{Columns, cluster_row, cluster_table, tenant_row, tenant_table};
use yoke_view::table::Table;

use crate::arguments::{GetOptions, Kind, ListFormat};
use crate::session::{PATIENCE, Session};
use crate::{Error, output, wait};

/// Shows the objects once and, with `--watch`, every later change.
///
/// Objects are fetched without a type, so that JSON and YAML also show fields that this plugin does
/// not know.
pub(crate) async fn get(session: &Session, options: &GetOptions) -> Result<(), Error> {
    let resource = resource_of(options.kind);
    let api: Api<DynamicObject> = match options.kind {
        Kind::Clusters if !options.all_namespaces => {
            Api::namespaced_with(session.client.clone(), &session.namespace, &resource)
        }
        _ => Api::all_with(session.client.clone(), &resource),
    };
    let mut view = View::new(options);
    if options.watch {
        return follow(session, api, options, &mut view).await;
    }
    match &options.name {
        Some(name) => {
            let mut object = session
                .request(&format!("getting {} {name}", resource.kind), || api.get(name))
                .await?;
            object.meta_mut().managed_fields = None;
            match options.output {
                Some(ListFormat::Json) => output::put(&output::to_json(&object)?),
                Some(ListFormat::Yaml) => output::put(&output::to_yaml(&object)?),
                _ => output::put(&view.show(&[object])?),
            }
        }
        None => {
            let parameters = ListParams {
                label_selector: options.selector.clone(),
                ..ListParams::default()
            };
            let doing = format!("listing {}", resource.plural);
            let list = session.request(&doing, || api.list(&parameters)).await?;
            show_list(session, options, &resource, list, &mut view)
        }
    }
}

fn resource_of(kind: Kind) -> ApiResource {
    match kind {
        Kind::Clusters => ApiResource::erase::<Cluster>(&()),
        Kind::Tenants => ApiResource::erase::<Tenant>(&()),
    }
}

fn show_list(
    session: &Session,
    options: &GetOptions,
    resource: &ApiResource,
    mut list: ObjectList<DynamicObject>,
    view: &mut View,
) -> Result<(), Error> {
    // The API server omits kind and version from the items of a list, but readers of the output
    // need them.
    for object in &mut list.items {
        object.meta_mut().managed_fields = None;
        object.types = Some(kube::api::TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        });
    }
    if matches!(options.output, Some(ListFormat::Json | ListFormat::Yaml)) {
        let list = PlainList {
            api_version: "v1",
            kind: "List",
            metadata: Default::default(),
            items: &list.items,
        };
        return match options.output {
            Some(ListFormat::Json) => output::put(&output::to_json(&list)?),
            _ => output::put(&output::to_yaml(&list)?),
        };
    }
    if list.items.is_empty() && options.output != Some(ListFormat::Name) {
        let place = match options.kind {
            Kind::Clusters if !options.all_namespaces => format!(" in namespace {}", session.namespace),
            _ => String::new(),
        };
        output::print_message(&format!("no {} found{place}", resource.plural));
        return Ok(());
    }
    output::put(&view.show(&list.items)?)
}

/// Shows the objects and every change. A host that cannot be reached at first, or stays overloaded,
/// is an error. A later disconnect is reported, and the watch is retried.
async fn follow(
    session: &Session,
    api: Api<DynamicObject>,
    options: &GetOptions,
    view: &mut View,
) -> Result<(), Error> {
    let config = watch::Config {
        label_selector: options.selector.clone(),
        field_selector: options.name.as_ref().map(|name| format!("metadata.name={name}")),
        ..watch::Config::default()
    };
    let doing = "watching";
    let changes = watcher::watcher(api, config).modify(|object| object.meta_mut().managed_fields = None);
    let mut changes = std::pin::pin!(changes.default_backoff());
    // The first list is one table; what a restarted watch lists again is shown as changes.
    let mut first = Vec::new();
    let begun = Instant::now();
    let listing = async {
        loop {
            match changes.try_next().await {
                Ok(Some(Event::Init)) => first.clear(),
                Ok(Some(Event::InitApply(object))) => first.push(object),
                Ok(Some(Event::InitDone) | None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(watcher::Error::InitialListFailed(error)) => {
                    let error = session.explain(doing, error);
                    if !error.is_overloaded() || begun.elapsed() > PATIENCE {
                        return Err(error);
                    }
                }
                Err(error) => {
                    wait::to_watch_problem(session, doing, error)?;
                }
            }
        }
    };
    session.within(doing, listing).await??;
    output::put(&view.show(&first)?)?;
    let mut last_problem = None;
    loop {
        match changes.try_next().await {
            Ok(Some(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object))) => {
                last_problem = None;
                output::put(&view.show(&[object])?)?;
            }
            Ok(Some(Event::Init | Event::InitDone)) => {}
            Ok(None) => return Ok(()),
            Err(error) => {
                if let Some(problem) = wait::to_watch_problem(session, doing, error)?
                    && last_problem.as_ref() != Some(&problem)
                {
                    output::print_message(&format!("{doing}: {problem}; trying again"));
                    last_problem = Some(problem);
                }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlainList<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta,
    items: &'a [DynamicObject],
}

/// Formats objects, and keeps the column widths so that rows of a watch align.
struct View {
    kind: Kind,
    format: Option<ListFormat>,
    columns: Columns,
    headed: bool,
    table: Option<Table>,
}

impl View {
    fn new(options: &GetOptions) -> Self {
        let columns = Columns {
            namespace: options.all_namespaces,
            wide: options.output == Some(ListFormat::Wide),
        };
        Self {
            kind: options.kind,
            format: options.output,
            columns,
            headed: !options.no_headers,
            table: None,
        }
    }

    fn show(&mut self, objects: &[DynamicObject]) -> Result<String, Error> {
        match self.format {
            Some(ListFormat::Json) => objects.iter().map(output::to_json).collect(),
            Some(ListFormat::Yaml) => objects
                .iter()
                .map(|object| Ok(format!("---\n{}", output::to_yaml(object)?)))
                .collect(),
            Some(ListFormat::Name) => Ok(objects.iter().map(|object| self.name(object)).collect()),
            Some(ListFormat::Wide) | None => self.show_rows(objects),
        }
    }

    fn name(&self, object: &DynamicObject) -> String {
        let (kind, group) = match self.kind {
            Kind::Clusters => (Cluster::kind(&()), Cluster::group(&())),
            Kind::Tenants => (Tenant::kind(&()), Tenant::group(&())),
        };
        format!("{}.{group}/{}\n", kind.to_lowercase(), object.name_any())
    }

    fn show_rows(&mut self, objects: &[DynamicObject]) -> Result<String, Error> {
        let now = Timestamp::now();
        let columns = self.columns;
        let fresh = self.table.is_none();
        let table = self.table.get_or_insert_with(|| match self.kind {
            Kind::Clusters => cluster_table(columns),
            Kind::Tenants => tenant_table(columns),
        });
        table.clear();
        for object in objects {
            let value = serde_json::to_value(object)?;
            table.push(match self.kind {
                Kind::Clusters => cluster_row(&serde_json::from_value(value)?, columns, now),
                Kind::Tenants => tenant_row(&serde_json::from_value(value)?, columns, now),
            });
        }
        Ok(if fresh && self.headed {
            table.to_text()
        } else {
            table.rows_to_text()
        })
    }
}
