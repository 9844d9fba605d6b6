//! JSON to configuration. Every bad value is refused here, with its name, the value and the cure.
//!
//! Knows no file system and no store: the caller found the text, and says where; the store's URL is
//! judged by the table of backends.

mod election;
mod leader_api;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

pub use self::election::{Apart, ElectionOptions, check_run_options};
use self::leader_api::{INSTEAD, Settings};
use crate::backend::leader_api::LEASE_UNTIL_TOLD;
use crate::backend::without_password;
use crate::candidate::OnRenewError;
use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE};
use crate::timing::{BadTiming, DEFAULT_LEASE, DEFAULT_RENEW, Timing};

/// The longest part of a bad value that an error repeats.
const SHOWN_VALUE: usize = 60;
/// How many letters a misspelt key may differ by, to be taken for the known one.
const MISSPELT: usize = 3;
/// The least that a request to an API server is given.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// JavaScript passes what JSON cannot hold as an object with this one key.
const FOREIGN_VALUE: &str = "$value";
/// And a store of the application's own with this one, as the number that it has been given.
const OWN_STORE: &str = "$store";

/// A validated configuration of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub kind: Kind,
    pub election: ElectionName,
    /// `None`: a default that is unique per process.
    pub instance: Option<InstanceId>,
    pub timing: Timing,
    pub on_renew_error: OnRenewError,
    pub on_overrun: OnOverrun,
    pub takes_part: bool,
    pub stop_timeout: Duration,
    /// Of the watchdog of the event loop; 0 is off, and `None` as each election's lease says.
    pub stall_timeout: Option<Duration>,
    pub signals: bool,
    pub keep_alive: bool,
    /// Where relative paths and the embedded store start.
    pub base_dir: PathBuf,
    /// To be said once, when the cluster starts.
    pub warnings: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    /// Always the leader, without any store.
    Local,
    Store {
        /// `None`: the embedded store in its default place.
        url: Option<String>,
        min_replicas: Option<u32>,
    },
    /// Functions of the application, by the number under which they were registered.
    OwnStore {
        store: u32,
        min_replicas: Option<u32>,
    },
    /// Leases of a Kubernetes cluster.
    Kubernetes {
        /// A kubeconfig; a relative path starts from [`Config::base_dir`].
        config: Option<PathBuf>,
        context: Option<String>,
        namespace: Option<String>,
        /// How long one operation may take; `None`: as long as the timing allows.
        timeout: Option<Duration>,
        pod_labels: bool,
    },
    /// A Leader Election API.
    LeaderApi { url: String, token: Option<String> },
}

impl fmt::Debug for Kind {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("Local"),
            Self::Store { url, min_replicas } => f
                .debug_struct("Store")
                .field("url", &url.as_deref().map(without_password))
                .field("min_replicas", min_replicas)
                .finish(),
            Self::OwnStore {
                store,
                min_replicas,
            } => f
                .debug_struct("OwnStore")
                .field("store", store)
                .field("min_replicas", min_replicas)
                .finish(),
            Self::Kubernetes {
                config,
                context,
                namespace,
                timeout,
                pod_labels,
            } => f
                .debug_struct("Kubernetes")
                .field("config", config)
                .field("context", context)
                .field("namespace", namespace)
                .field("timeout", timeout)
                .field("pod_labels", pod_labels)
                .finish(),
            Self::LeaderApi { url, .. } => f
                .debug_struct("LeaderApi")
                .field("url", &without_password(url))
                .finish_non_exhaustive(),
        }
    }
}

/// What happens when the callbacks of a lost term do not end before its lease does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOverrun {
    Warn,
    Exit,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub message: String,
    pub fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Something is to be mended in the text.
    Text,
    /// The text is fine, but configures no cluster at all.
    NoCluster,
    /// The text is fine, and leaves to the environment what that does not say.
    Unset,
}

impl ConfigError {
    fn new(message: String) -> Self {
        Self {
            message,
            fault: Fault::Text,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// `source` names the text in errors, `env` looks up `${NAME}`.
    pub fn parse(
        json: &str,
        source: &str,
        base_dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(json)
            .map_err(|error| ConfigError::new(format!("{source}: not valid JSON: {error}")))?;
        let section = Section::find(value, source, env)?;
        let config = section.read(base_dir, env)?;
        Ok(config)
    }

    /// Whether both mean the same, in whatever words and from whatever file.
    pub fn same_as(&self, other: &Self) -> bool {
        let said = |config: &Self| Self {
            warnings: Vec::new(),
            ..config.clone()
        };
        said(self) == said(other)
    }

    /// The name of this kind of cluster in a configuration.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Local => "LocalCluster",
            Kind::Store { .. } | Kind::OwnStore { .. } => "StoreCluster",
            Kind::Kubernetes { .. } => "KubernetesCluster",
            Kind::LeaderApi { .. } => "LeaderApiCluster",
        }
    }
}

/// The cluster types, and the parameters that only one of them has.
const TYPES: [(&str, &[&str]); 4] = [
    ("StoreCluster", &["store", "registry", "minReplicas"]),
    (
        "KubernetesCluster",
        &["namespace", "config", "context", "timeout", "podLabels"],
    ),
    (
        "LeaderApiCluster",
        &["url", "resource", "identity", "token"],
    ),
    ("LocalCluster", &[]),
];

/// The parameters that every type has.
const COMMON: [&str; 14] = [
    "type",
    "leaseDuration",
    "renewInterval",
    "instanceId",
    "leaseName",
    "candidate",
    "onRenewError",
    "leadLimit",
    "onOverrun",
    "stopTimeout",
    "stallTimeout",
    "signals",
    "keepAlive",
    "logger",
];

/// The part of the text that describes the one cluster that counts.
struct Section {
    /// Where it stands, for errors: `whenleader.config.json: cluster`.
    place: String,
    type_name: &'static str,
    values: Map<String, Value>,
    warnings: Vec<String>,
}

impl Section {
    fn find(
        value: Value,
        source: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let Value::Object(mut top) = value else {
            return Err(ConfigError::new(format!(
                "{source}: must be an object like {{ \"cluster\": {{ \"type\": \"StoreCluster\" }} }}, not {}",
                shown(&value)
            )));
        };
        if let Some(services) = top.remove("services") {
            return Self::of_services(services, source, env);
        }
        if let Some(cluster) = top.remove("cluster") {
            if let Some((key, _)) = top.iter().next() {
                return Err(ConfigError::new(format!(
                    "{source}: {key} is not known beside cluster; put it inside of cluster"
                )));
            }
            return Self::of_cluster(cluster, format!("{source}: cluster"), env);
        }
        // The parameters themselves, as in startCluster({ type: "StoreCluster", store: "..." }).
        if top.is_empty() {
            return Err(ConfigError {
                message: format!(
                    "{source}: configures no cluster; add \"cluster\": {{ \"type\": \"StoreCluster\" }}"
                ),
                fault: Fault::NoCluster,
            });
        }
        Self::of_cluster(Value::Object(top), source.to_string(), env)
    }

    fn of_services(
        services: Value,
        source: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let Value::Object(services) = services else {
            return Err(ConfigError::new(format!(
                "{source}: services must be an object of services by name, not {}",
                shown(&services)
            )));
        };
        let mut clusters = services.into_iter().filter(|(_, service)| {
            service
                .get("type")
                .and_then(Value::as_str)
                .is_some_and(|name| known_type(name).is_some() || looks_like_ours(name))
        });
        let Some((name, service)) = clusters.next() else {
            return Err(ConfigError {
                message: format!(
                    "{source}: no service is a cluster; its type would be one of {}",
                    type_names()
                ),
                fault: Fault::NoCluster,
            });
        };
        let mut section = Self::of_cluster(service, format!("{source}: services.{name}"), env)?;
        if let Some((other, _)) = clusters.next() {
            section.warnings.push(format!(
                "{source}: services {name} and {other} are both clusters; the first, {name}, counts"
            ));
        }
        Ok(section)
    }

    fn of_cluster(
        cluster: Value,
        place: String,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let Value::Object(mut values) = cluster else {
            return Err(ConfigError::new(format!(
                "{place} must be an object like {{ \"type\": \"StoreCluster\" }}, not {}",
                shown(&cluster)
            )));
        };
        expand(&mut values, &place, env)?;
        let type_name = match values.get("type") {
            None => "StoreCluster",
            Some(Value::String(name)) => {
                known_type(name).ok_or_else(|| ConfigError::new(no_type(&place, name)))?
            }
            Some(other) => {
                return Err(ConfigError::new(format!(
                    "{place}.type must be one of {}, not {}",
                    type_names(),
                    shown(other)
                )));
            }
        };
        Ok(Self {
            place,
            type_name,
            values,
            warnings: Vec::new(),
        })
    }

    fn read(
        mut self,
        base_dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        self.refuse_unknown_keys()?;
        settle_alias(&mut self.values, &self.place)?;
        if self.type_name == "LeaderApiCluster" {
            let Settings {
                kind,
                resource,
                identity,
            } = Settings::read(&self, env)?;
            let timing = Timing::told(LEASE_UNTIL_TOLD);
            return self.config(kind, resource, identity, timing, base_dir);
        }
        let timing = self.timing()?;
        let kind = match self.type_name {
            "StoreCluster" => self.store()?,
            "KubernetesCluster" => self.kubernetes(&timing)?,
            _ => Kind::Local,
        };
        let (election, instance) = self.names()?;
        self.config(kind, election, instance, timing, base_dir)
    }

    fn names(&self) -> Result<(ElectionName, Option<InstanceId>), ConfigError> {
        let election = self
            .string("leaseName", "a name like \"leader\"")?
            .unwrap_or_else(|| "leader".into());
        let election = ElectionName::new(&election)
            .map_err(|bad| self.bad("leaseName", &election.into(), &bad.0))?;
        let instance = self
            .string("instanceId", "a name that is unique per process")?
            .map(|id| {
                InstanceId::new(&id).map_err(|bad| self.bad("instanceId", &id.into(), &bad.0))
            })
            .transpose()?;
        Ok((election, instance))
    }

    /// With what all types have in common.
    fn config(
        mut self,
        kind: Kind,
        election: ElectionName,
        instance: Option<InstanceId>,
        timing: Timing,
        base_dir: &Path,
    ) -> Result<Config, ConfigError> {
        let on_renew_error = match self.choice("onRenewError", ["stepDown", "retry"])? {
            Some("retry") => OnRenewError::Retry,
            // A check-in that fails says nothing of the lease.
            None if matches!(kind, Kind::LeaderApi { .. }) => OnRenewError::Retry,
            _ => OnRenewError::StepDown,
        };
        let on_overrun = match self.choice("onOverrun", ["warn", "exit"])? {
            Some("exit") => OnOverrun::Exit,
            _ => OnOverrun::Warn,
        };
        let timing = match on_overrun {
            OnOverrun::Exit => timing
                .with_time_to_end(self.millis("leadLimit")?)
                .map_err(|bad| self.bad_timing(&bad))?,
            OnOverrun::Warn => timing,
        };
        if let Some(logger) = self.values.get("logger") {
            return Err(self.bad(
                "logger",
                logger,
                "be an object with the functions error, warn and info, given to startCluster()",
            ));
        }
        let stop_timeout = self
            .up_to_a_day("stopTimeout")?
            .unwrap_or_else(|| timing.default_stop_timeout());
        let stall_timeout = self.up_to_a_day("stallTimeout")?;
        if let Some(limit) = stall_timeout
            && !limit.is_zero()
            && limit < timing.renew_interval()
        {
            return Err(self.bad(
                "stallTimeout",
                &u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).into(),
                "be 0 (off) or at least the renewInterval",
            ));
        }
        if timing.leaves_little_room() {
            self.warnings.push(format!(
                "{}: a leader trusts its lease for {} of {} ms, so two clocks may differ in rate by {:.0} % only; a renewInterval of a third of leaseDuration, without a leadLimit, leaves 20 %",
                self.place,
                timing.lead_limit(timing.lease()).as_millis(),
                timing.lease().as_millis(),
                (timing.drift_allowed() * 100.0).floor()
            ));
        }
        Ok(Config {
            kind,
            election,
            instance,
            timing,
            on_renew_error,
            on_overrun,
            takes_part: self.boolean("candidate")?.unwrap_or(true),
            stop_timeout,
            stall_timeout,
            signals: self.boolean("signals")?.unwrap_or(true),
            keep_alive: self.boolean("keepAlive")?.unwrap_or(false),
            base_dir: base_dir.to_path_buf(),
            warnings: self.warnings,
        })
    }

    fn store(&self) -> Result<Kind, ConfigError> {
        let min_replicas = self
            .number("minReplicas", "a whole number of replicas")?
            .map(|n| {
                u32::try_from(n)
                    .map_err(|_| self.bad("minReplicas", &n.into(), "be a number of replicas"))
            })
            .transpose()?;
        let url = "a URL like \"redis://127.0.0.1:6379\" or \"file:<directory>\"";
        let given = self.values.get("store");
        if let Some(object @ Value::Object(_)) = given
            && object.get(FOREIGN_VALUE).is_none()
        {
            let store = own_store(object).ok_or_else(|| {
                let rule = format!(
                    "be {url}; a store of your own has functions, which no JSON can hold: give it to startCluster({{ cluster: {{ store: {{ get, compareAndSet }} }} }})"
                );
                self.bad("store", object, &rule)
            })?;
            return Ok(Kind::OwnStore {
                store,
                min_replicas,
            });
        }
        Ok(Kind::Store {
            url: self.string("store", url)?,
            min_replicas,
        })
    }

    fn kubernetes(&mut self, timing: &Timing) -> Result<Kind, ConfigError> {
        let timeout = self.millis("timeout")?;
        if let Some(limit) = timeout {
            let (least, most) = (SHORTEST_TIMEOUT, timing.lead_limit(timing.lease()));
            if limit < least || limit > most {
                let rule = format!(
                    "be {} to {} ms: a leader trusts its lease no longer than that without an answer",
                    least.as_millis(),
                    most.as_millis()
                );
                return Err(self.bad("timeout", &self.values["timeout"], &rule));
            }
        }
        let text = |field: &str, rule: &str| match self.string(field, rule)? {
            Some(text) if text.is_empty() => {
                Err(self.bad(field, &text.into(), &format!("be {rule}")))
            }
            text => Ok(text),
        };
        let kind = Kind::Kubernetes {
            config: text("config", "the path of a kubeconfig")?.map(PathBuf::from),
            context: text("context", "the name of a context of the kubeconfig")?,
            namespace: text("namespace", "the name of a namespace like \"shop\"")?,
            timeout,
            pod_labels: self.boolean("podLabels")?.unwrap_or(false),
        };
        if !self.values.contains_key("leaseName") {
            self.warnings.push(format!(
                "{}: leaseName is not given, so this application elects with the Lease \"leader\", as every other one in its namespace that gives none: name it after the application",
                self.place
            ));
        }
        Ok(kind)
    }

    fn timing(&self) -> Result<Timing, ConfigError> {
        let lease = self.millis("leaseDuration")?;
        let renew = self.millis("renewInterval")?;
        let limit = self.millis("leadLimit")?;
        Timing::new(
            lease.unwrap_or(DEFAULT_LEASE),
            renew.unwrap_or(DEFAULT_RENEW),
            limit,
        )
        .map_err(|bad| self.bad_timing(&bad))
    }

    fn bad_timing(&self, BadTiming { parameter, rule }: &BadTiming) -> ConfigError {
        match self.values.get(*parameter) {
            Some(value) => self.bad(parameter, value, rule),
            // The default does not fit to what was given.
            None => ConfigError::new(format!(
                "{}.{parameter} must {rule}; it is not given, and its default does not fit",
                self.place
            )),
        }
    }

    fn refuse_unknown_keys(&self) -> Result<(), ConfigError> {
        let own = TYPES
            .iter()
            .find(|(name, _)| *name == self.type_name)
            .map_or(&[][..], |t| t.1);
        for key in self.values.keys() {
            let key = key.as_str();
            if COMMON.contains(&key) || own.contains(&key) {
                continue;
            }
            if let Some((owner, _)) = TYPES.iter().find(|(_, keys)| keys.contains(&key)) {
                return Err(ConfigError::new(format!(
                    "{}.{key} belongs to {owner}, but the type is {}; change the type or remove it",
                    self.place, self.type_name
                )));
            }
            let known = COMMON.iter().chain(own).copied();
            let known = known.filter(|key| {
                self.type_name != "LeaderApiCluster"
                    || INSTEAD.iter().all(|(other, _)| other != key)
            });
            return Err(ConfigError::new(format!(
                "{}.{key} is not known{}; {} takes {}",
                self.place,
                did_you_mean(key, known.clone()),
                self.type_name,
                known.collect::<Vec<_>>().join(", ")
            )));
        }
        Ok(())
    }

    fn bad(&self, parameter: &str, value: &Value, rule: &str) -> ConfigError {
        ConfigError::new(format!(
            "{}.{parameter} must {rule}, not {}",
            self.place,
            shown(value)
        ))
    }

    fn millis(&self, parameter: &str) -> Result<Option<Duration>, ConfigError> {
        Ok(self
            .number(parameter, "a whole number of milliseconds")?
            .map(Duration::from_millis))
    }

    fn up_to_a_day(&self, parameter: &str) -> Result<Option<Duration>, ConfigError> {
        let duration = self.millis(parameter)?;
        if duration.is_some_and(|duration| duration > LONGEST_LEASE) {
            let rule = format!("be at most {} ms (24 hours)", LONGEST_LEASE.as_millis());
            return Err(self.bad(parameter, &self.values[parameter], &rule));
        }
        Ok(duration)
    }

    fn number(&self, parameter: &str, what: &str) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.values.get(parameter) else {
            return Ok(None);
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = value.as_u64().or_else(|| {
            // 15000.0 and 1e4 are whole numbers too.
            value
                .as_f64()
                .filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n))
                .map(|n| n as u64)
        });
        match (whole, value) {
            (Some(number), _) => Ok(Some(number)),
            (None, Value::String(text)) => {
                let cure = text
                    .trim()
                    .parse::<u64>()
                    .map_or_else(|_| String::new(), |n| format!("; write {n} without quotes"));
                Err(self.bad(parameter, value, &format!("be {what}{cure}")))
            }
            (None, _) => Err(self.bad(parameter, value, &format!("be {what}"))),
        }
    }

    fn string(&self, parameter: &str, what: &str) -> Result<Option<String>, ConfigError> {
        match self.values.get(parameter) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.bad(parameter, other, &format!("be {what}"))),
        }
    }

    fn boolean(&self, parameter: &str) -> Result<Option<bool>, ConfigError> {
        match self.values.get(parameter) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(*yes)),
            Some(other) => Err(self.bad(parameter, other, "be true or false")),
        }
    }

    fn choice(
        &self,
        parameter: &str,
        choices: [&'static str; 2],
    ) -> Result<Option<&'static str>, ConfigError> {
        let Some(value) = self.values.get(parameter) else {
            return Ok(None);
        };
        let chosen = choices
            .into_iter()
            .find(|choice| value.as_str() == Some(choice));
        if chosen.is_some() {
            return Ok(chosen);
        }
        let [first, second] = choices;
        Err(self.bad(parameter, value, &format!("be \"{first}\" or \"{second}\"")))
    }
}

/// `registry` is another word for `store`.
fn settle_alias(values: &mut Map<String, Value>, place: &str) -> Result<(), ConfigError> {
    let Some(registry) = values.shift_remove("registry") else {
        return Ok(());
    };
    match values.get("store") {
        Some(store) if *store != registry => Err(ConfigError::new(format!(
            "{place}.registry is another word for store, and they differ ({} and {}): remove one",
            shown(&registry),
            shown(store)
        ))),
        Some(_) => Ok(()),
        None => {
            values.insert("store".into(), registry);
            Ok(())
        }
    }
}

fn own_store(value: &Value) -> Option<u32> {
    let number = value.get(OWN_STORE)?.as_u64()?;
    u32::try_from(number).ok()
}

/// The name of a type without what Webda puts around it.
fn strip_type(name: &str) -> &str {
    let name = name.strip_prefix("Webda/").unwrap_or(name);
    name.strip_suffix("Service").unwrap_or(name)
}

fn known_type(name: &str) -> Option<&'static str> {
    TYPES
        .iter()
        .map(|(known, _)| *known)
        .find(|known| *known == strip_type(name))
}

/// Of a service that is surely meant to be one of our clusters, so that a slip in its type is not passed over.
fn looks_like_ours(name: &str) -> bool {
    let known = TYPES.iter().map(|(known, _)| *known);
    !did_you_mean(strip_type(name), known).is_empty()
}

/// What is said of a type that cannot be used.
fn no_type(place: &str, name: &str) -> String {
    format!(
        "{place}.type must be one of {}, not {}{}",
        type_names(),
        shown(&Value::String(name.into())),
        did_you_mean(strip_type(name), TYPES.iter().map(|(known, _)| *known)),
    )
}

fn type_names() -> String {
    TYPES.map(|(name, _)| name).join(", ")
}

fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase()),
                candidate,
            )
        })
        .min()
        .filter(|(distance, _)| *distance <= MISSPELT)
        .map_or_else(String::new, |(_, candidate)| {
            format!("; did you mean {candidate}?")
        })
}

/// A bad value as an error repeats it: short, and without a password.
fn shown(value: &Value) -> String {
    if let Some(foreign) = value.get(FOREIGN_VALUE).and_then(Value::as_str) {
        return foreign.to_string();
    }
    let text = match value {
        Value::String(text) => format!("{:?}", without_password(text)),
        // What is in it may be a secret.
        Value::Object(_) => "an object".to_string(),
        Value::Array(_) => "an array".to_string(),
        other => other.to_string(),
    };
    if text.chars().count() > SHOWN_VALUE {
        let start: String = text.chars().take(SHOWN_VALUE).collect();
        return format!("{start}... ({} characters)", text.chars().count());
    }
    text
}

/// `${NAME}` becomes the environment's value, `$${` a plain `${`.
fn expand(
    values: &mut Map<String, Value>,
    place: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    for (key, value) in values.iter_mut() {
        let Value::String(text) = value else { continue };
        let mut expanded = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find("${") {
            let (before, after) = rest.split_at(at);
            if let Some(literal) = before.strip_suffix('$') {
                expanded.push_str(literal);
                expanded.push_str("${");
                rest = &after[2..];
                continue;
            }
            let Some((name, tail)) = after[2..].split_once('}') else {
                return Err(ConfigError::new(format!(
                    "{place}.{key}: ${{ is not closed by }}; write $${{ for a plain ${{"
                )));
            };
            let Some(found) = env(name) else {
                return Err(ConfigError::new(format!(
                    "{place}.{key} names ${{{name}}}, but the environment variable {name} is not set; set it or remove it here"
                )));
            };
            expanded.push_str(before);
            expanded.push_str(&found);
            rest = tail;
        }
        expanded.push_str(rest);
        *text = expanded;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Config, ConfigError> {
        let env = |name: &str| (name == "REDIS_PASSWORD").then(|| "pa/ss".to_string());
        Config::parse(json, "test.json", Path::new("/app"), &env)
    }

    fn refused(json: &str) -> String {
        parse(json).expect_err(json).message
    }

    fn cluster(parameters: &str) -> String {
        format!(r#"{{ "cluster": {{ "type": "StoreCluster", {parameters} }} }}"#)
    }

    #[test]
    fn all_three_forms_are_accepted_with_and_without_webdas_prefix_and_suffix() {
        for json in [
            r#"{ "services": { "log": { "type": "Webda/Logger" }, "c": { "type": "Webda/StoreClusterService", "leaseDuration": 15000, "renewInterval": 5000 } } }"#,
            r#"{ "services": { "c": { "type": "StoreCluster" } } }"#,
            r#"{ "cluster": { "type": "StoreCluster" } }"#,
            r#"{ "cluster": {} }"#,
            r#"{ "type": "StoreClusterService" }"#,
        ] {
            let config = parse(json).unwrap();
            assert_eq!(
                config.kind,
                Kind::Store {
                    url: None,
                    min_replicas: None
                },
                "{json}"
            );
            assert_eq!(config.timing.lease(), DEFAULT_LEASE);
            assert_eq!(config.timing.renew_interval(), DEFAULT_RENEW);
            assert_eq!(config.election.as_str(), "leader");
        }
    }

    #[test]
    fn of_several_services_the_first_cluster_counts_and_the_other_is_told_of() {
        let config = parse(
            r#"{ "services": { "b": { "type": "StoreCluster", "leaseName": "b" }, "a": { "type": "StoreCluster", "leaseName": "a" } } }"#,
        )
        .unwrap();
        assert_eq!(config.election.as_str(), "b");
        assert!(
            config.warnings[0].contains("services b and a"),
            "{:?}",
            config.warnings
        );
    }

    #[test]
    fn text_without_a_cluster_is_told_from_a_bad_one() {
        for json in [
            "{}",
            r#"{ "services": {} }"#,
            r#"{ "services": { "a": { "type": "Acme/KafkaCluster" } } }"#,
        ] {
            assert_eq!(parse(json).unwrap_err().fault, Fault::NoCluster, "{json}");
        }
        assert_eq!(parse("[]").unwrap_err().fault, Fault::Text);
    }

    #[test]
    fn every_bad_value_is_refused_with_its_name_the_value_and_the_cure() {
        for (parameters, words) in [
            (
                r#""leaseDuration": 5000, "renewInterval": 5000"#,
                "renewInterval must be lower than leaseDuration, 5000 ms",
            ),
            (
                r#""leaseDuration": 5000, "renewInterval": 15000"#,
                "not 15000",
            ),
            (
                r#""leaseDuration": 5000"#,
                "renewInterval must be lower than leaseDuration, 5000 ms; a third of it is usual; it is not given",
            ),
            (
                r#""leaseDuration": 0, "renewInterval": 0"#,
                "renewInterval must be at least 50 ms, not 0",
            ),
            (
                r#""leaseDuration": -1"#,
                "leaseDuration must be a whole number of milliseconds, not -1",
            ),
            (
                r#""leaseDuration": { "$value": "NaN" }"#,
                "leaseDuration must be a whole number of milliseconds, not NaN",
            ),
            (
                r#""leaseDuration": 1e12"#,
                "leaseDuration must be at most 86400000 ms (24 hours)",
            ),
            (r#""leaseDuration": "15000""#, "write 15000 without quotes"),
            (r#""leaseDuration": "15s""#, "not \"15s\""),
            (r#""leaseDuration": 15000.5"#, "not 15000.5"),
            (r#""leaseDuration": null"#, "not null"),
            (
                r#""renewInterval": 14999"#,
                "renewInterval must leave at least 100 ms",
            ),
            (
                r#""renewInterval": 1"#,
                "renewInterval must be at least 50 ms",
            ),
            (
                r#""leaseDuraton": 15000"#,
                "leaseDuraton is not known; did you mean leaseDuration?",
            ),
            (r#""leaseName": """#, "leaseName must not be empty"),
            (
                r#""leaseName": " ""#,
                "leaseName must not begin or end with a space",
            ),
            (r#""instanceId": """#, "instanceId must not be empty"),
            (
                r#""namespace": "shop""#,
                "namespace belongs to KubernetesCluster",
            ),
            (r#""store": 5"#, "store must be a URL"),
            (
                r#""candidate": "no""#,
                "candidate must be true or false, not \"no\"",
            ),
            (
                r#""onRenewError": "ignore""#,
                "onRenewError must be \"stepDown\" or \"retry\", not \"ignore\"",
            ),
            (
                r#""leadLimit": 14999"#,
                "leadLimit must be at most 14750 ms",
            ),
            (r#""stallTimeout": 10"#, "stallTimeout must be 0 (off)"),
            (
                r#""stopTimeout": 3000000000"#,
                "stopTimeout must be at most 86400000 ms (24 hours), not 3000000000",
            ),
            (
                r#""logger": "pino""#,
                "logger must be an object with the functions",
            ),
        ] {
            let message = refused(&cluster(parameters));
            assert!(message.contains(words), "{parameters}: {message}");
            assert!(message.starts_with("test.json: cluster."), "{message}");
        }
        let long = "x".repeat(254);
        let message = refused(&cluster(&format!(r#""leaseName": "{long}""#)));
        assert!(
            message.contains("at most 253 bytes, not 254") && message.len() < 250,
            "{message}"
        );
        assert!(
            refused(r#"{ "cluster": { "type": "StoreClutser" } }"#)
                .contains("did you mean StoreCluster?")
        );
        assert!(refused(r#"{ "cluster": [] }"#).contains("not an array"));
        assert!(refused("{").contains("test.json: not valid JSON"));
    }

    #[test]
    fn a_type_that_is_none_is_refused_with_those_that_there_are() {
        for json in [
            r#"{ "cluster": { "type": "KafkaCluster" } }"#,
            r#"{ "cluster": { "type": "LeaderApiClutser" } }"#,
            r#"{ "cluster": { "type": 5 } }"#,
            // Nobody shall lead because it was passed over.
            r#"{ "services": { "c": { "type": "LeaderApiClutser" } } }"#,
            r#"{ "services": { "c": { "type": "Acme/Kafka" } } }"#,
        ] {
            let message = refused(json);
            let offered = "one of StoreCluster, KubernetesCluster, LeaderApiCluster, LocalCluster";
            assert!(message.contains(offered), "{json}: {message}");
        }
    }

    const KELVIN: [(&str, &str); 5] = [
        ("KELVIN_CLUSTER_NAME", "edge-1"),
        ("KELVIN_WORKLOAD_NAME", "pump"),
        ("KELVIN_APP_NAME", "flow"),
        ("KELVIN_LEADER_API_ADDRESS", "fd00::1"),
        ("KELVIN_LEADER_API_PORT", "8080"),
    ];

    fn leader_api(parameters: &str, set: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let json = format!(
            r#"{{ "cluster": {{ "type": "Webda/LeaderApiClusterService" {parameters} }} }}"#
        );
        let env = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name)?;
            Some(found.1.to_owned())
        };
        Config::parse(&json, "test.json", Path::new("/app"), &env)
    }

    #[test]
    fn a_leader_api_cluster_takes_what_is_not_given_from_its_platform() {
        let config = leader_api("", &KELVIN).unwrap();
        let Kind::LeaderApi { url, token } = &config.kind else {
            panic!("{config:?}");
        };
        assert_eq!((&**url, token), ("http://[fd00::1]:8080", &None));
        assert_eq!(config.election.as_str(), "krn:app:flow");
        assert_eq!(config.instance.unwrap().as_str(), "krn:wl:edge-1/pump");
        assert_eq!(config.on_renew_error, OnRenewError::Retry);
        assert!(config.warnings.is_empty());

        let all = r#", "url": "https://h/api", "identity": "me", "resource": "krn:job:x", "token": "hunter2", "onRenewError": "stepDown""#;
        let config = leader_api(all, &[]).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        assert_eq!(config.election.as_str(), "krn:job:x");
        assert_eq!(config.on_renew_error, OnRenewError::StepDown);
    }

    #[test]
    fn what_a_leader_api_clusters_platform_does_not_say_is_named() {
        let unset = |parameters: &str, set: &[(&str, &str)]| {
            let error = leader_api(parameters, set).unwrap_err();
            assert_eq!(error.fault, Fault::Unset, "{}", error.message);
            error.message
        };
        let message = leader_api(r#", "url": "http://h""#, &[]).unwrap_err();
        assert_eq!(
            message.fault,
            Fault::Text,
            "it is not the platform's to say"
        );
        assert!(message.message.ends_with("has no KELVIN_APP_NAME"));
        let own = r#", "url": "http://h", "resource": "krn:app:x""#;
        assert_eq!(
            leader_api(own, &[]).unwrap().instance,
            None,
            "one of its own"
        );
        assert!(
            leader_api(own, &KELVIN[..1]).is_err(),
            "half an identity is none"
        );
        let message = unset("", &[]);
        for (name, _) in KELVIN {
            assert!(message.contains(name), "{name}: {message}");
        }
        let message = unset(
            r#", "resource": "krn:app:x", "identity": "me""#,
            &KELVIN[..4],
        );
        assert!(
            message.ends_with("has no KELVIN_LEADER_API_PORT"),
            "{message}"
        );
        for (name, value) in [
            ("KELVIN_LEADER_API_PORT", "0"),
            ("KELVIN_LEADER_API_PORT", "65536"),
            ("KELVIN_LEADER_API_PORT", "+80"),
            ("KELVIN_LEADER_API_PORT", "http"),
            ("KELVIN_LEADER_API_ADDRESS", "a/b"),
            ("KELVIN_LEADER_API_ADDRESS", "a b"),
            ("KELVIN_LEADER_API_ADDRESS", "a,b"),
            ("KELVIN_LEADER_API_ADDRESS", "h:80"),
            ("KELVIN_LEADER_API_ADDRESS", "h:x"),
            ("KELVIN_LEADER_API_ADDRESS", "[::1"),
            ("KELVIN_LEADER_API_ADDRESS", "[::1]:80"),
            ("KELVIN_LEADER_API_ADDRESS", "u:p@h"),
            ("KELVIN_LEADER_API_ADDRESS", "h%2fx"),
            ("KELVIN_LEADER_API_ADDRESS", "h\\x"),
            ("KELVIN_APP_NAME", "my app"),
            ("KELVIN_APP_NAME", "a\n"),
            ("KELVIN_WORKLOAD_NAME", &"w".repeat(254)),
        ] {
            let mut set = KELVIN;
            let at = set.iter().position(|(known, _)| *known == name).unwrap();
            set[at].1 = value;
            let message = unset("", &set);
            assert!(
                message.contains(name) && message.contains("must"),
                "{name}={value}: {message}"
            );
            assert!(!message.contains("u:p"), "{message}");
        }
    }

    #[test]
    fn what_the_server_of_a_leader_api_cluster_says_is_not_configured() {
        for parameter in ["leaseDuration", "renewInterval", "leadLimit"] {
            let message = leader_api(&format!(r#", "{parameter}": 5000"#), &KELVIN)
                .unwrap_err()
                .message;
            assert!(
                message.contains(parameter) && message.contains("server says"),
                "{message}"
            );
        }
        for (parameter, instead) in [("leaseName", "resource"), ("instanceId", "identity")] {
            let message = leader_api(&format!(r#", "{parameter}": "x""#), &KELVIN)
                .unwrap_err()
                .message;
            assert!(
                message.contains(&format!("it is called {instead}")),
                "{message}"
            );
        }
        let message = leader_api(r#", "identity": """#, &KELVIN)
            .unwrap_err()
            .message;
        assert!(message.contains("identity must not be empty"), "{message}");
    }

    #[test]
    fn the_environment_fills_in_names_and_a_missing_one_is_an_error_that_names_it() {
        let config = parse(&cluster(r#""store": "redis://:${REDIS_PASSWORD}@h""#)).unwrap();
        assert_eq!(
            config.kind,
            Kind::Store {
                url: Some("redis://:pa/ss@h".into()),
                min_replicas: None
            }
        );
        let message = refused(&cluster(r#""store": "redis://${NOWHERE}""#));
        assert!(
            message.contains("environment variable NOWHERE is not set"),
            "{message}"
        );
        assert!(refused(&cluster(r#""store": "${OPEN""#)).contains("not closed"));
        let plain = parse(&cluster(r#""leaseName": "$${x}""#)).unwrap();
        assert_eq!(plain.election.as_str(), "${x}");
    }

    #[test]
    fn a_password_is_never_repeated() {
        for (parameters, place) in [
            (r#""store": { "url": "redis://:hunter2@h" }"#, "an object"),
            (r#""store": ["redis://:hunter2@h"]"#, "an array"),
            (r#""leaseName": " redis://u:hunter2@h""#, "leaseName"),
            (r#""onOverrun": "redis://u:hunter2@h""#, "onOverrun"),
        ] {
            let message = refused(&cluster(parameters));
            assert!(message.contains(place), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        let config = parse(&cluster(r#""store": "redis://:hunter2@h""#)).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_cluster_on_kubernetes_has_its_own_parameters_and_a_default_name_is_warned_of() {
        let kubernetes = |parameters: &str| {
            parse(&format!(
                r#"{{ "cluster": {{ "type": "Webda/KubernetesClusterService" {parameters} }} }}"#
            ))
            .unwrap()
        };
        let config = kubernetes("");
        assert_eq!(config.type_name(), "KubernetesCluster");
        assert!(config.warnings[0].contains("leaseName is not given"));
        let config = kubernetes(
            r#", "leaseName": "shop", "namespace": "n", "config": "k", "context": "c", "timeout": 3000, "podLabels": true"#,
        );
        assert_eq!(config.warnings, Vec::<String>::new());
        assert_eq!(
            config.kind,
            Kind::Kubernetes {
                config: Some("k".into()),
                context: Some("c".into()),
                namespace: Some("n".into()),
                timeout: Some(Duration::from_secs(3)),
                pod_labels: true,
            }
        );
    }

    #[test]
    fn registry_is_another_word_for_store_and_both_must_agree() {
        let url = "redis://127.0.0.1:6379";
        for parameters in [
            format!(r#""registry": "{url}""#),
            format!(r#""registry": "{url}", "store": "{url}""#),
        ] {
            let kind = Kind::Store {
                url: Some(url.into()),
                min_replicas: None,
            };
            assert_eq!(parse(&cluster(&parameters)).unwrap().kind, kind);
        }
        let message = refused(&cluster(
            r#""registry": "redis://:hunter2@h", "store": "redis://:hunter2@i""#,
        ));
        assert!(message.contains("another word for store"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        let message = refused(r#"{ "cluster": { "type": "LocalCluster", "registry": "x" } }"#);
        let words = "registry belongs to StoreCluster";
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn a_store_of_ones_own_is_named_by_its_number_and_any_other_object_is_refused_with_the_way_to_give_one()
     {
        let kind = Kind::OwnStore {
            store: 7,
            min_replicas: None,
        };
        for parameters in [
            r#""store": { "$store": 7 }"#,
            r#""registry": { "$store": 7 }"#,
            r#""registry": { "$store": 7 }, "store": { "$store": 7 }"#,
        ] {
            let config = parse(&cluster(parameters)).unwrap();
            assert_eq!((&config.kind, config.type_name()), (&kind, "StoreCluster"));
        }
        for parameters in [
            r#""store": {}"#,
            r#""store": { "get": "x" }"#,
            r#""store": { "$store": -1 }"#,
            r#""registry": { "$store": "7" }"#,
        ] {
            let message = refused(&cluster(parameters));
            assert!(message.contains("startCluster({ cluster:"), "{message}");
            assert!(message.contains("not an object"), "{message}");
        }
    }

    #[test]
    fn a_renew_interval_above_half_of_the_lease_is_warned_of() {
        let config = parse(&cluster(r#""renewInterval": 8000"#)).unwrap();
        assert!(config.warnings[0].contains("13 %"), "{:?}", config.warnings);
    }
}
