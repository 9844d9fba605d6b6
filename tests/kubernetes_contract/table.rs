//! The contract: what is asked, in this order, and what must be answered.

pub const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const STEPS: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Admin,
    /// A service account that may get, create and update Leases in the namespace of the run.
    Elector,
    /// One that may only update them.
    Updater,
    /// Somebody with a token that the server never gave out.
    Stranger,
    Nobody,
}

use Who::{Admin, Elector, Nobody, Stranger, Updater};

/// A name; who asks; method and path; the body's type and text; the code of the answer, and the reason of
/// its Status or the kind of its object.
///
/// In path and body `{ns}` is the namespace, `{leases}` the path of its Leases, `{rest}` the usual fields of
/// a spec after its holder, `{rv:step}` and `{uid:step}` what the answer to that step said.
#[derive(Debug, Clone, Copy)]
pub struct Step(
    pub &'static str,
    pub Who,
    pub &'static str,
    pub (&'static str, &'static str),
    pub u16,
    pub &'static str,
);

pub const REST: &str = r#""leaseDurationSeconds":15,"acquireTime":"2026-11-29T16:00:00.000000Z","renewTime":"2026-11-29T16:55:31.101939Z","leaseTransitions":0"#;

/// Reads and writes of a Lease by somebody who may do all.
#[rustfmt::skip]
pub const LEASES: [Step; 26] = [
    Step("version", Admin, "GET /version", (JSON, ""), 200, ""),
    Step("namespace", Admin, "POST /api/v1/namespaces",
        (JSON, r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"{ns}"}}"#), 201, "Namespace"),
    Step("get of an absent one", Admin, "GET {leases}/leader", (JSON, ""), 404, "NotFound"),
    Step("create", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"leader"},"spec":{"holderIdentity":"a",{rest}}}"#), 201, "Lease"),
    Step("create again", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"leader"},"spec":{"holderIdentity":"b",{rest}}}"#), 409, "AlreadyExists"),
    Step("update", Admin, "PUT {leases}/leader",
        (JSON, r#"{"metadata":{"name":"leader","resourceVersion":"{rv:create}"},"spec":{"holderIdentity":"a","leaseDurationSeconds":14}}"#), 200, "Lease"),
    Step("update of an old version", Admin, "PUT {leases}/leader",
        (JSON, r#"{"metadata":{"name":"leader","resourceVersion":"{rv:create}"},"spec":{"holderIdentity":"b",{rest}}}"#), 409, "Conflict"),
    Step("update of no version", Admin, "PUT {leases}/leader",
        (JSON, r#"{"metadata":{"name":"leader"},"spec":{"holderIdentity":"c",{rest}}}"#), 422, "Invalid"),
    Step("merge patch", Admin, "PATCH {leases}/leader",
        (MERGE, r#"{"spec":{"leaseDurationSeconds":16}}"#), 200, "Lease"),
    Step("merge patch of an old version", Admin, "PATCH {leases}/leader",
        (MERGE, r#"{"metadata":{"resourceVersion":"{rv:update}"},"spec":{"holderIdentity":"x"}}"#), 409, "Conflict"),
    Step("JSON patch whose test fails", Admin, "PATCH {leases}/leader",
        (STEPS, r#"[{"op":"test","path":"/spec/holderIdentity","value":"zzz"},{"op":"replace","path":"/spec/holderIdentity","value":"y"}]"#), 422, "Invalid"),
    Step("strategic merge patch", Admin, "PATCH {leases}/leader",
        (STRATEGIC, r#"{"spec":{"leaseDurationSeconds":17}}"#), 200, "Lease"),
    Step("apply of another's fields", Admin, "PATCH {leases}/leader?fieldManager=it",
        (APPLY, r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"leader"},"spec":{"holderIdentity":"z",{rest}}}"#), 409, "Conflict"),
    Step("apply with force", Admin, "PATCH {leases}/leader?fieldManager=it&force=true",
        (APPLY, r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"leader"},"spec":{"holderIdentity":"z",{rest}}}"#), 200, "Lease"),
    Step("update of an absent one creates it", Admin, "PUT {leases}/viaput",
        (JSON, r#"{"metadata":{"name":"viaput"},"spec":{"holderIdentity":"p",{rest}}}"#), 201, "Lease"),
    Step("update of an absent one's old version creates it", Admin, "PUT {leases}/nosuch",
        (JSON, r#"{"metadata":{"name":"nosuch","resourceVersion":"12345"},"spec":{"holderIdentity":"p",{rest}}}"#), 201, "Lease"),
    Step("duration zero", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"holderIdentity":"a","leaseDurationSeconds":0}}"#), 422, "Invalid"),
    Step("transitions below zero", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"holderIdentity":"a","leaseTransitions":-1}}"#), 422, "Invalid"),
    Step("time without a fraction", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"renewTime":"2026-11-29T16:00:00Z"}}"#), 400, "BadRequest"),
    Step("time in milliseconds", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"renewTime":"2026-11-29T16:00:00.123Z"}}"#), 400, "BadRequest"),
    Step("time in nanoseconds", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"renewTime":"2026-11-29T16:00:00.123456789Z"}}"#), 400, "BadRequest"),
    Step("time that is none", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"renewTime":"yesterday"}}"#), 400, "BadRequest"),
    Step("empty holder", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"emptyholder"},"spec":{"holderIdentity":"","leaseDurationSeconds":1}}"#), 201, "Lease"),
    Step("bad name", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"Bad_Name"},"spec":{"holderIdentity":"a",{rest}}}"#), 422, "Invalid"),
    Step("list", Admin, "GET {leases}", (JSON, ""), 200, "LeaseList"),
    Step("absent namespace", Admin, "POST /apis/coordination.k8s.io/v1/namespaces/nosuchns/leases",
        (JSON, r#"{"metadata":{"name":"leader"},"spec":{"holderIdentity":"a",{rest}}}"#), 404, "NotFound"),
];

/// Two service accounts, their rights, and a token of each.
#[rustfmt::skip]
pub const ACCOUNTS: [Step; 8] = [
    Step("elector's account", Admin, "POST /api/v1/namespaces/{ns}/serviceaccounts",
        (JSON, r#"{"metadata":{"name":"elector"}}"#), 201, "ServiceAccount"),
    Step("elector's role", Admin, "POST /apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
        (JSON, r#"{"metadata":{"name":"elector"},"rules":[{"verbs":["get","create","update"],"apiGroups":["coordination.k8s.io"],"resources":["leases"]}]}"#), 201, "Role"),
    Step("elector's role binding", Admin, "POST /apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
        (JSON, r#"{"metadata":{"name":"elector"},"subjects":[{"kind":"ServiceAccount","name":"elector","namespace":"{ns}"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"elector"}}"#), 201, "RoleBinding"),
    Step("elector's token", Admin, "POST /api/v1/namespaces/{ns}/serviceaccounts/elector/token",
        (JSON, r#"{"spec":{"expirationSeconds":600}}"#), 201, "TokenRequest"),
    Step("updater's account", Admin, "POST /api/v1/namespaces/{ns}/serviceaccounts",
        (JSON, r#"{"metadata":{"name":"updater"}}"#), 201, "ServiceAccount"),
    Step("updater's role", Admin, "POST /apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
        (JSON, r#"{"metadata":{"name":"updater"},"rules":[{"verbs":["update"],"apiGroups":["coordination.k8s.io"],"resources":["leases"]}]}"#), 201, "Role"),
    Step("updater's role binding", Admin, "POST /apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
        (JSON, r#"{"metadata":{"name":"updater"},"subjects":[{"kind":"ServiceAccount","name":"updater","namespace":"{ns}"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"updater"}}"#), 201, "RoleBinding"),
    Step("updater's token", Admin, "POST /api/v1/namespaces/{ns}/serviceaccounts/updater/token",
        (JSON, r#"{"spec":{"expirationSeconds":600}}"#), 201, "TokenRequest"),
];

/// What accounts with few rights, or none, are answered.
#[rustfmt::skip]
pub const RIGHTS: [Step; 10] = [
    Step("the elector gets", Elector, "GET {leases}/leader", (JSON, ""), 200, "Lease"),
    Step("the elector updates", Elector, "PUT {leases}/leader",
        (JSON, r#"{"metadata":{"name":"leader","resourceVersion":"{rv:the elector gets}"},"spec":{"holderIdentity":"sa",{rest}}}"#), 200, "Lease"),
    Step("the elector creates", Elector, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"second"},"spec":{"holderIdentity":"sa",{rest}}}"#), 201, "Lease"),
    Step("the elector may not patch", Elector, "PATCH {leases}/leader",
        (MERGE, r#"{"spec":{"leaseDurationSeconds":18}}"#), 403, "Forbidden"),
    Step("the elector may not delete", Elector, "DELETE {leases}/second", (JSON, ""), 403, "Forbidden"),
    Step("the elector may not list", Elector, "GET {leases}", (JSON, ""), 403, "Forbidden"),
    Step("the elector may not watch", Elector, "GET {leases}?watch=1&fieldSelector=metadata.name%3Dleader", (JSON, ""), 403, "Forbidden"),
    Step("the elector may do nothing elsewhere", Elector, "GET /apis/coordination.k8s.io/v1/namespaces/default/leases/leader", (JSON, ""), 403, "Forbidden"),
    Step("unknown token", Stranger, "GET {leases}/leader", (JSON, ""), 401, "Unauthorized"),
    Step("no token", Nobody, "GET {leases}/leader", (JSON, ""), 403, "Forbidden"),
];

/// After the end of an account, and of a Lease.
#[rustfmt::skip]
pub const ENDS: [Step; 4] = [
    Step("the elector's account is deleted", Admin, "DELETE /api/v1/namespaces/{ns}/serviceaccounts/elector", (JSON, ""), 200, "ServiceAccount"),
    Step("token of a deleted account", Elector, "GET {leases}/leader", (JSON, ""), 401, "Unauthorized"),
    Step("delete", Admin, "DELETE {leases}/leader", (JSON, ""), 200, "Success"),
    Step("get of a deleted one", Admin, "GET {leases}/leader", (JSON, ""), 404, "NotFound"),
];

/// What else is easily got wrong.
#[rustfmt::skip]
pub const TRAPS: [Step; 33] = [
    Step("update of an absent one that is named by its uid", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","uid":"0625a8d4-913d-4c45-bf4d-48a56f9470ba"},"spec":{}}"#), 409, "Conflict"),
    Step("update without the right to create", Updater, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap"},"spec":{"holderIdentity":"a",{rest}}}"#), 403, "Forbidden"),
    Step("trap", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap"},"spec":{"holderIdentity":"a",{rest}}}"#), 201, "Lease"),
    Step("update that changes nothing", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","resourceVersion":"{rv:trap}"},"spec":{"holderIdentity":"a",{rest}}}"#), 200, "Lease"),
    Step("merge patch of a bad time", Admin, "PATCH {leases}/trap",
        (MERGE, r#"{"spec":{"renewTime":"yesterday"}}"#), 422, "Invalid"),
    Step("annotation with a bad key", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad","annotations":{"bad key":"x"}},"spec":{}}"#), 422, "Invalid"),
    Step("label with a bad value on a lease", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad","labels":{"a":"a b"}},"spec":{}}"#), 422, "Invalid"),
    Step("update of another uid", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","uid":"bad","resourceVersion":"{rv:trap}"},"spec":{}}"#), 409, "Conflict"),
    Step("update of its uid", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","uid":"{uid:trap}","resourceVersion":"{rv:trap}","annotations":{"example.com/a":"b"}},"spec":{"holderIdentity":"b","leaseDurationSeconds":15}}"#), 200, "Lease"),
    Step("update of an old version with bad values", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","resourceVersion":"{rv:trap}"},"spec":{"holderIdentity":"a","leaseDurationSeconds":0}}"#), 409, "Conflict"),
    Step("update of a version that is no number", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"trap","resourceVersion":"abc"},"spec":{"holderIdentity":"a",{rest}}}"#), 500, ""),
    Step("create of a version", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"fresh","resourceVersion":"5"},"spec":{"holderIdentity":"a",{rest}}}"#), 500, ""),
    Step("update under another name", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{"name":"other","resourceVersion":"5"},"spec":{"holderIdentity":"a",{rest}}}"#), 400, "BadRequest"),
    Step("update without a name", Admin, "PUT {leases}/trap",
        (JSON, r#"{"metadata":{},"spec":{}}"#), 400, "BadRequest"),
    Step("create in another namespace", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"trap","namespace":"other"},"spec":{}}"#), 400, "BadRequest"),
    Step("create without a name", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{},"spec":{}}"#), 422, "Invalid"),
    Step("name that ends with a dot", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"a."},"spec":{"holderIdentity":"a",{rest}}}"#), 422, "Invalid"),
    Step("unknown fields", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"unknown"},"spec":{"holderIdentity":"a","x":1,"strategy":"OldestEmulationVersion"}}"#), 201, "Lease"),
    Step("unknown fields in strict reading", Admin, "POST {leases}?fieldValidation=Strict",
        (JSON, r#"{"metadata":{"name":"strict"},"spec":{"x":1}}"#), 400, "BadRequest"),
    Step("two bad values", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"bad"},"spec":{"leaseDurationSeconds":0,"leaseTransitions":-1}}"#), 422, "Invalid"),
    Step("bad precondition of a deletion", Admin, "DELETE {leases}/trap",
        (JSON, r#"{"preconditions":{"uid":"bad"}}"#), 409, "Conflict"),
    Step("create with a finalizer", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"held","finalizers":["example.com/held"]},"spec":{}}"#), 201, "Lease"),
    Step("delete with a finalizer", Admin, "DELETE {leases}/held", (JSON, ""), 200, "Lease"),
    Step("the last finalizer goes", Admin, "PATCH {leases}/held",
        (MERGE, r#"{"metadata":{"finalizers":null}}"#), 200, "Lease"),
    Step("get without finalizers", Admin, "GET {leases}/held", (JSON, ""), 404, "NotFound"),
    Step("what the updater may", Updater, "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        (JSON, r#"{"spec":{"resourceAttributes":{"namespace":"{ns}","verb":"update","group":"coordination.k8s.io","resource":"leases"}}}"#), 201, "SelfSubjectAccessReview"),
    Step("what the updater may not", Updater, "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        (JSON, r#"{"spec":{"resourceAttributes":{"namespace":"{ns}","verb":"create","group":"coordination.k8s.io","resource":"leases"}}}"#), 201, "SelfSubjectAccessReview"),
    Step("list of a later world", Admin, "GET {leases}?resourceVersion=999999999", (JSON, ""), 504, "Timeout"),
    Step("unknown field selector", Admin, "GET {leases}?fieldSelector=spec.holderIdentity%3Da", (JSON, ""), 400, "BadRequest"),
    Step("unknown kind", Admin, "GET /apis/coordination.k8s.io/v1/namespaces/{ns}/leasez", (JSON, ""), 404, "NotFound"),
    Step("patch of an unknown type", Admin, "PATCH {leases}/trap",
        (JSON, "{}"), 415, "UnsupportedMediaType"),
    Step("the namespace is deleted", Admin, "DELETE /api/v1/namespaces/{ns}", (JSON, ""), 200, "Namespace"),
    Step("create in a namespace that ends", Admin, "POST {leases}",
        (JSON, r#"{"metadata":{"name":"late"},"spec":{"holderIdentity":"a",{rest}}}"#), 403, "Forbidden"),
];

/// A pod and its labels.
#[rustfmt::skip]
pub const PODS: [Step; 9] = [
    Step("pod", Admin, "POST /api/v1/namespaces/{ns}/pods",
        (JSON, r#"{"metadata":{"name":"pod"},"spec":{"containers":[{"name":"a","image":"b"}]}}"#), 201, "Pod"),
    Step("merge of a label", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":"leader"}}}"#), 200, "Pod"),
    Step("the same label again", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":"leader"}}}"#), 200, "Pod"),
    Step("strategic merge of a label", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (STRATEGIC, r#"{"metadata":{"labels":{"example.com/other":"a"}}}"#), 200, "Pod"),
    Step("removal of a label", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":null}}}"#), 200, "Pod"),
    Step("label of an absent pod", Admin, "PATCH /api/v1/namespaces/{ns}/pods/absent",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":"leader"}}}"#), 404, "NotFound"),
    Step("label that is no string", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":5}}}"#), 422, "Invalid"),
    Step("label with a bad value", Admin, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":"a b"}}}"#), 422, "Invalid"),
    Step("label without the right", Elector, "PATCH /api/v1/namespaces/{ns}/pods/pod",
        (MERGE, r#"{"metadata":{"labels":{"example.com/role":"leader"}}}"#), 403, "Forbidden"),
];

/// Values of a spec, one by one, and how each is answered.
pub const VALUES: [(&str, u16); 24] = [
    (r#"{"leaseDurationSeconds":"15"}"#, 400),
    (r#"{"leaseDurationSeconds":15.0}"#, 400),
    (r#"{"leaseDurationSeconds":2147483647}"#, 201),
    (r#"{"leaseDurationSeconds":2147483648}"#, 400),
    (r#"{"leaseDurationSeconds":true}"#, 400),
    (r#"{"holderIdentity":5}"#, 400),
    (r#"{"holderIdentity":null}"#, 201),
    (r#"{"renewTime":5}"#, 400),
    (r#"{"renewTime":""}"#, 400),
    (r#"{"renewTime":null}"#, 201),
    (r#"{"renewTime":"2026-11-29T16:00:00.000000"}"#, 400),
    (r#"{"renewTime":"2026-11-29T16:00:00.000000+02:00"}"#, 201),
    (r#"{"renewTime":"2026-11-29 16:00:00.000000Z"}"#, 400),
    (r#"{"renewTime":"2026-13-29T16:00:00.000000Z"}"#, 400),
    (r#"{"renewTime":"2026-02-30T16:00:00.000000Z"}"#, 400),
    (r#"{"renewTime":"2026-02-20T16:00:60.000000Z"}"#, 400),
    (r#"{"renewTime":"2026-02-20T16:00:00.000000Zx"}"#, 400),
    (r#"{"renewTime":"20220804T135255.122Z"}"#, 400),
    (r#"{"renewTime":"0001-01-01T00:00:00.000000Z"}"#, 201),
    (r#"{"renewTime":"9999-12-31T23:59:59.999999Z"}"#, 201),
    (r#"{"HolderIdentity":"x"}"#, 201),
    ("[]", 400),
    (r#""x""#, 400),
    ("null", 201),
];
