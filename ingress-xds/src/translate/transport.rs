//! Transport sockets of an Envoy cluster that carries both connections and requests. Requests go to
//! the control plane over a new TLS connection; passed-through connections already carry their
//! client's TLS.
//!
//! TLS is the default. Only the passthrough filter chain of Envoy's bootstrap selects the raw
//! socket: it marks its connections by filter state, which no client can set.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::TransportSocketMatch;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{DataSource, TransportSocket};
use envoy_types::pb::envoy::extensions::matching::common_inputs::transport_socket::v3::{
    FilterStateInput, TransportSocketNameAction,
};
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, UpstreamTlsContext,
};
use envoy_types::pb::envoy::r#type::matcher::v3::StringMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use envoy_types::pb::xds::core::v3::TypedExtensionConfig;
use envoy_types::pb::xds::r#type::matcher::v3::Matcher;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_tree::{MatchMap, TreeType};
use envoy_types::pb::xds::r#type::matcher::v3::matcher::on_match::OnMatch as Outcome;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::{MatcherTree, MatcherType, OnMatch};
use prost::Name;

use crate::model::route::UpstreamTrust;

/// Names of Envoy extensions.
const TLS: &str = "envoy.transport_sockets.tls";
const RAW_BUFFER: &str = "envoy.transport_sockets.raw_buffer";
const FILTER_STATE: &str = "envoy.matching.inputs.transport_socket_filter_state";
const SOCKET_NAME: &str = "envoy.matching.action.transport_socket.name";
/// The filter state key in Envoy's bootstrap, and its value. The value is also the name of the
/// socket.
const MARK: &str = "yoke.transport";
const PASSTHROUGH: &str = "passthrough";

/// Makes an Envoy cluster open TLS that `trust` verifies, except for connections with the
/// passthrough mark.
pub(super) fn secure(cluster: Cluster, trust: &UpstreamTrust) -> Cluster {
    Cluster {
        transport_socket: Some(translate_tls(trust)),
        transport_socket_matches: vec![TransportSocketMatch {
            name: PASSTHROUGH.to_owned(),
            // No endpoint has this metadata, so an Envoy that does not know the matcher below uses
            // TLS for everything.
            r#match: Some(Struct {
                fields: [(MARK.to_owned(), to_value(PASSTHROUGH))].into(),
            }),
            transport_socket: Some(to_socket(RAW_BUFFER, &RawBuffer {})),
        }],
        transport_socket_matcher: Some(translate_mark()),
        ..cluster
    }
}

fn translate_mark() -> Matcher {
    let key = MARK.to_owned();
    let name = PASSTHROUGH.to_owned();
    let action = to_extension(SOCKET_NAME, &TransportSocketNameAction { name });
    let matched = OnMatch {
        on_match: Some(Outcome::Action(action)),
        ..Default::default()
    };
    let tree = MatcherTree {
        input: Some(to_extension(FILTER_STATE, &FilterStateInput { key })),
        tree_type: Some(TreeType::ExactMatchMap(MatchMap {
            map: [(PASSTHROUGH.to_owned(), matched)].into(),
        })),
    };
    Matcher {
        on_no_match: None,
        matcher_type: Some(MatcherType::MatcherTree(tree)),
    }
}

fn translate_tls(trust: &UpstreamTrust) -> TransportSocket {
    let name = SubjectAltNameMatcher {
        san_type: SanType::Dns.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(MatchPattern::Exact(trust.server_name.clone())),
            ..Default::default()
        }),
        ..Default::default()
    };
    let validation = CertificateValidationContext {
        trusted_ca: Some(DataSource {
            specifier: Some(Specifier::InlineString(trust.ca.clone())),
            ..Default::default()
        }),
        match_typed_subject_alt_names: vec![name],
        ..Default::default()
    };
    let context = UpstreamTlsContext {
        sni: trust.server_name.clone(),
        common_tls_context: Some(CommonTlsContext {
            validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
            ..Default::default()
        }),
        ..Default::default()
    };
    to_socket(TLS, &context)
}

fn to_socket<M: Name>(name: &str, config: &M) -> TransportSocket {
    TransportSocket {
        name: name.to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(config))),
    }
}

fn to_extension<M: Name>(name: &str, config: &M) -> TypedExtensionConfig {
    TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(to_any(config)),
    }
}

fn to_value(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

fn to_any<M: Name>(message: &M) -> Any {
    Any {
        type_url: M::type_url(),
        value: message.encode_to_vec(),
    }
}
