//! The server's metrics, as text for Prometheus. Each scrape reads the statistics of the tables.

mod http;
mod tls;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use engram_engine::TableInfo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::counters::Call;
use super::service_state::ServiceState;
pub(super) use http::MetricsEndpoint;
pub(super) use tls::build_acceptor;

/// The content type of the text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A metric with one value per table.
struct TableMetric {
    name: &'static str,
    help: &'static str,
    read: fn(&TableInfo) -> Value,
}

/// The value of a metric.
enum Value {
    /// A counter: it only grows, until the table is reset or the server ends.
    Total(u64),
    /// A whole number that can also decrease.
    Count(u64),
    /// A real number that can also decrease.
    Real(f64),
    /// A bound; left out for tables without one.
    Bound(Option<u64>),
}

const fn metric(
    name: &'static str,
    help: &'static str,
    read: fn(&TableInfo) -> Value,
) -> TableMetric {
    TableMetric { name, help, read }
}

/// The metrics of tables; `docs/server.md` lists them too.
const TABLE_METRICS: [TableMetric; 21] = [
    metric("table_items", "Items, including hidden ones", |t| {
        Value::Count(t.stats.size)
    }),
    metric("table_max_items", "Maximum number of items", |t| {
        Value::Count(t.options.max_size)
    }),
    metric(
        "table_bytes",
        "Bytes of the items and of the chunks they refer to",
        |t| Value::Count(t.stats.bytes),
    ),
    metric(
        "table_max_bytes",
        "Maximum number of bytes; absent if unlimited",
        |t| Value::Bound(t.options.max_bytes),
    ),
    metric(
        "table_hidden_items",
        "Hidden items: sampled as often as allowed, with samples still on lease",
        |t| Value::Count(t.stats.hidden_items),
    ),
    metric(
        "table_episodes",
        "Distinct episodes with steps in the table",
        |t| Value::Count(t.stats.num_episodes),
    ),
    metric(
        "table_inserts",
        "Items inserted since creation or reset",
        |t| Value::Total(t.stats.limiter.inserts),
    ),
    metric(
        "table_samples",
        "Items sampled since creation or reset, repetitions included, without samples on lease",
        // Samples on lease may be returned, and a counter must not decrease.
        |t| Value::Total(t.stats.limiter.samples.saturating_sub(t.stats.leased)),
    ),
    metric(
        "table_deletes",
        "Items removed since creation or reset, for any reason",
        |t| Value::Total(t.stats.limiter.deletes),
    ),
    metric(
        "table_unique_samples",
        "Items sampled at least once since creation or reset",
        |t| Value::Count(t.stats.num_unique_samples),
    ),
    metric(
        "table_deleted_episodes",
        "Episodes removed completely since creation or reset",
        |t| Value::Total(t.stats.num_deleted_episodes),
    ),
    metric(
        "table_unreadable_items",
        "Items removed since creation, opening or reset because they could not be read",
        |t| Value::Total(t.unreadable_items),
    ),
    metric(
        "table_waiting_inserts",
        "Writers and insert calls whose items wait",
        |t| Value::Count(t.waiting_inserts as u64),
    ),
    metric("table_waiting_samples", "Waiting sample calls", |t| {
        Value::Count(t.waiting_samples as u64)
    }),
    metric(
        "table_inserting_blocked",
        "1 if an insert would wait now, else 0",
        |t| Value::Count(t.inserting_blocked.is_some().into()),
    ),
    metric(
        "table_sampling_blocked",
        "1 if a sample would wait now, else 0",
        |t| Value::Count(t.sampling_blocked.is_some().into()),
    ),
    metric(
        "table_limiter_diff",
        "Inserts times samples_per_insert minus samples, which the rate limiter keeps between min_diff and max_diff; \
         starts at 0, which may be below min_diff",
        |t| Value::Real(t.stats.limiter.diff()),
    ),
    metric(
        "table_limiter_min_diff",
        "Lower bound of the rate limiter's difference: a sample that would make it smaller waits",
        |t| Value::Real(t.stats.limiter.limits.min_diff),
    ),
    metric(
        "table_limiter_max_diff",
        "Upper bound of the rate limiter's difference: an insert that would make it larger waits, unless the table \
         then has at most min_size items",
        |t| Value::Real(t.stats.limiter.limits.max_diff),
    ),
    metric(
        "table_limiter_min_items",
        "Minimum number of items before samples are allowed",
        |t| Value::Count(t.stats.limiter.limits.min_size),
    ),
    metric(
        "table_limiter_samples_per_insert",
        "The rate limiter's ratio of samples to inserts",
        |t| Value::Real(t.stats.limiter.limits.samples_per_insert),
    ),
];

/// Returns the metrics as text.
///
/// # Errors
/// Those of the encoder; writing to a string does not fail.
fn render(state: &Arc<ServiceState>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("engram");
    registry.register_collector(Box::new(MetricsCollector(Arc::clone(state))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Collects the metrics of one server.
#[derive(Debug)]
struct MetricsCollector(Arc<ServiceState>);

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_server(&mut encoder)?;
        // A closed store has no tables.
        let tables = self.0.engine.tables().unwrap_or_default();
        let tables: Vec<TableInfo> = tables.iter().map(|table| table.info()).collect();
        for TableMetric { name, help, read } in &TABLE_METRICS {
            let Some(first) = tables.first() else {
                break;
            };
            let mut family = encoder.encode_descriptor(name, help, None, read(first).kind())?;
            for table in &tables {
                let labels = [("table", EscapedLabel(&table.options.name))];
                read(table).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl MetricsCollector {
    fn encode_server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counters = &self.0.counters;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("server", "Version of the server", None, MetricType::Info)?
            .encode_info(&version)?;
        for (name, help, value) in [
            (
                "server_connections",
                "Connections accepted; a client on the same machine opens two: TCP, then a local socket",
                Value::Total(counters.connections.begun()),
            ),
            (
                "server_open_connections",
                "Open connections",
                Value::Count(counters.connections.open()),
            ),
            (
                "server_storage_problem",
                "1 if changes cannot be stored durably now, else 0; the reason is in each table's info",
                Value::Count(self.0.engine.storage_problem().is_some().into()),
            ),
        ] {
            value.encode(encoder.encode_descriptor(name, help, None, value.kind())?)?;
        }
        for (name, help, read) in [
            (
                "server_calls",
                "Calls begun; a stream counts as one call",
                (|call| Value::Total(call.begun())) as fn(&super::counters::OpenCounter) -> Value,
            ),
            ("server_open_calls", "Open calls and streams", |call| {
                Value::Count(call.open())
            }),
        ] {
            let kind = read(counters.get(Call::Hello)).kind();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for call in Call::ALL {
                let (protocol, name) = call.labels();
                let labels = [("protocol", protocol), ("call", name)];
                read(counters.get(call)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Total(_) => MetricType::Counter,
            Self::Count(_) | Self::Real(_) | Self::Bound(_) => MetricType::Gauge,
        }
    }

    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match *self {
            Self::Total(value) => ConstCounter::new(value).encode(encoder),
            Self::Count(value) | Self::Bound(Some(value)) => ConstGauge::new(value).encode(encoder),
            Self::Real(value) => ConstGauge::new(value).encode(encoder),
            Self::Bound(None) => Ok(()),
        }
    }
}

/// A label's value with special characters escaped, which the library does not do.
#[derive(Debug)]
struct EscapedLabel<'a>(&'a str);

impl EncodeLabelValue for EscapedLabel<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => encoder.write_str("\\\\")?,
                '"' => encoder.write_str("\\\"")?,
                '\n' => encoder.write_str("\\n")?,
                other => encoder.write_char(other)?,
            }
        }
        Ok(())
    }
}
