//! The servers that tests use do what tests take for granted.

#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{ClientIdentity, OptsBuilder, SslOpts};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use support::{Kind, Server, eventually};
use tokio_postgres::NoTls;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Longer than a server on loopback takes, shorter than a test may.
const NO_ANSWER: Duration = Duration::from_millis(600);

mod postgres {
    use super::*;

    fn tls(server: &Server, client: Option<&str>) -> MakeRustlsConnect {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(server.told("/ca")).unwrap();
        roots.add(ca).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        MakeRustlsConnect::new(match client {
            None => config.with_no_client_auth(),
            Some(who) => {
                let file = |what: &str| server.told(&format!("/{who}/{what}")).to_owned();
                let chain = vec![CertificateDer::from_pem_file(file("cert")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// What the server says who has connected, or why it did not let them in.
    async fn come(
        server: &Server,
        user: &str,
        password: &str,
        client: Option<&str>,
        ssl: bool,
    ) -> Result<String, String> {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(server.port);
        config.user(user).password(password).dbname("tests");
        let shown = |error: tokio_postgres::Error| {
            let said = error.as_db_error().map(|error| error.message().to_owned());
            said.unwrap_or_else(|| error.to_string())
        };
        let client = if ssl {
            config.ssl_mode(tokio_postgres::config::SslMode::Require);
            let (client, connection) = config.connect(tls(server, client)).await.map_err(shown)?;
            tokio::spawn(connection);
            client
        } else {
            let (client, connection) = config.connect(NoTls).await.map_err(shown)?;
            tokio::spawn(connection);
            client
        };
        let row = client.query_one("SELECT current_user::text", &[]).await;
        row.map(|row| row.get(0)).map_err(shown)
    }

    async fn client(url: &str) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    #[tokio::test]
    async fn users_come_in_as_its_rules_say() {
        let Some(server) = Server::shared("users of PostgreSQL", Kind::Postgres) else {
            return;
        };
        let (odd, password) = (server.told("/odd/user"), server.told("/odd/password"));
        for ssl in [false, true] {
            let came = come(server, odd, password, None, ssl).await;
            assert_eq!(came.as_deref(), Ok(odd), "with TLS: {ssl}");
            let refused = come(server, odd, "wrong", None, ssl).await.unwrap_err();
            assert!(
                refused.contains("password authentication failed"),
                "{refused}"
            );
        }
        for (who, with_tls) in [("tlsOnly", true), ("plainOnly", false)] {
            let user = server.told(&format!("/{who}/user"));
            let password = server.told(&format!("/{who}/password"));
            let came = come(server, user, password, None, with_tls).await;
            assert_eq!(came.as_deref(), Ok(user));
            let refused = come(server, user, password, None, !with_tls).await;
            let refused = refused.unwrap_err();
            assert!(refused.contains("pg_hba.conf rejects"), "{refused}");
        }
        let certified = server.told("/certified/user");
        let came = come(server, certified, "", Some("certified"), true).await;
        assert_eq!(came.as_deref(), Ok(certified));
        let refused = come(server, certified, "", Some("stranger"), true).await;
        assert!(
            refused
                .unwrap_err()
                .contains("certificate authentication failed")
        );
        assert!(come(server, certified, "", None, true).await.is_err());
    }

    #[tokio::test]
    async fn it_stands_still_dies_and_comes_back_with_all_that_it_answered() {
        let Some(server) = Server::own("PostgreSQL dies", Kind::Postgres, &[]) else {
            return;
        };
        let first = client(server.url()).await;
        first
            .batch_execute("CREATE TABLE kept(x int)")
            .await
            .unwrap();

        // Those who are connected already get no answer, and neither does who comes now.
        server.freeze().await;
        let asked = first.batch_execute("INSERT INTO kept VALUES (1)");
        let comes = tokio_postgres::connect(server.url(), NoTls);
        assert!(tokio::time::timeout(NO_ANSWER, asked).await.is_err());
        assert!(tokio::time::timeout(NO_ANSWER, comes).await.is_err());
        server.thaw().await;
        first
            .batch_execute("INSERT INTO kept VALUES (2)")
            .await
            .unwrap();

        server.kill().await;
        assert!(first.batch_execute("SELECT 1").await.is_err());
        support::gone(server.port).await;
        server.restart().await;
        let row = client(server.url()).await;
        let row = row.query_one("SELECT max(x) FROM kept", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 2);
    }

    #[tokio::test]
    async fn a_standby_follows_and_takes_over() {
        let Some(server) = Server::own("a standby of PostgreSQL", Kind::Postgres, &[]) else {
            return;
        };
        let primary = client(server.url()).await;
        let told = server.ask(json!({ "do": "standby" })).await;
        let standby = client(told["url"].as_str().unwrap()).await;
        primary
            .batch_execute("CREATE TABLE news(x int)")
            .await
            .unwrap();
        eventually("the standby has the news", async || {
            standby.query("SELECT x FROM news", &[]).await.ok()
        })
        .await;
        let refused = standby.batch_execute("INSERT INTO news VALUES (1)").await;
        assert_eq!(refused.unwrap_err().code().unwrap().code(), "25006");

        server.kill().await;
        server.ask(json!({ "do": "promote" })).await;
        standby
            .batch_execute("INSERT INTO news VALUES (1)")
            .await
            .unwrap();
        server.ask(json!({ "do": "kill", "of": "standby" })).await;
        server
            .ask(json!({ "do": "restart", "of": "standby" }))
            .await;
        let standby = client(told["url"].as_str().unwrap()).await;
        let rows = standby.query("SELECT x FROM news", &[]).await.unwrap();
        assert_eq!(rows.len(), 1);
    }

    #[tokio::test]
    async fn a_pool_of_transactions_stands_in_front() {
        let Some(server) = Server::own("PgBouncer", Kind::Postgres, &[]) else {
            return;
        };
        let told = server.ask(json!({ "do": "pgbouncer" })).await;
        let pooled = |key: &str| told[key].as_str().unwrap();
        // A statement outside of a transaction may meet a backend that another client has just used.
        let one = client(pooled("url")).await;
        let two = client(pooled("url")).await;
        let backend = async |client: &tokio_postgres::Client| {
            let answer = client
                .simple_query("SELECT pg_backend_pid()")
                .await
                .unwrap();
            answer.into_iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
        };
        assert_eq!(backend(&one).await, backend(&two).await);
        client(pooled("odd")).await;
    }

    #[tokio::test]
    async fn nothing_of_it_outlives_the_launcher_even_while_it_stands_still() {
        for frozen in [false, true] {
            let Some(server) = Server::own("the end of PostgreSQL", Kind::Postgres, &[]) else {
                return;
            };
            let _connected = client(server.url()).await;
            let folder = server.told("/socket").to_owned();
            let processes = processes_of(&folder);
            assert!(processes.len() > 3, "{processes:?}");
            if frozen {
                server.freeze().await;
            }
            server.kill_launcher();
            eventually("all its processes end", async || {
                processes_of(&folder).is_empty().then_some(())
            })
            .await;
            // Nobody was left to do it.
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

mod mariadb {
    use super::*;

    fn options(server: &Server, user: &str, password: &str) -> OptsBuilder {
        OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(server.port)
            .user(Some(user))
            .pass(Some(password))
            .db_name(Some("tests"))
            .prefer_socket(false)
    }

    fn with_tls(server: &Server, options: OptsBuilder, client: Option<&str>) -> OptsBuilder {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = Path::new(server.told("/ca")).to_owned();
        let identity = client.map(|who| {
            let file = |what: &str| Path::new(server.told(&format!("/{who}/{what}"))).to_owned();
            ClientIdentity::new(file("cert").into(), file("key").into())
        });
        let tls = SslOpts::default().with_root_certs(vec![ca.into()]);
        options.ssl_opts(tls.with_client_identity(identity))
    }

    async fn come(options: OptsBuilder) -> Result<String, String> {
        let connected = mysql_async::Conn::new(options).await;
        let mut connection = connected.map_err(|error| error.to_string())?;
        let user = connection
            .query_first("SELECT substring_index(user(), '@127', 1)")
            .await;
        user.map(Option::unwrap).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn users_come_in_as_their_grants_say() {
        let Some(server) = Server::shared("users of MariaDB", Kind::MariaDb) else {
            return;
        };
        let (odd, password) = (server.told("/odd/user"), server.told("/odd/password"));
        let plain = options(server, odd, password);
        assert_eq!(come(plain.clone()).await.as_deref(), Ok(odd));
        assert_eq!(
            come(with_tls(server, plain, None)).await.as_deref(),
            Ok(odd)
        );
        let refused = come(options(server, odd, "wrong")).await.unwrap_err();
        assert!(refused.contains("Access denied"), "{refused}");

        let tls_only = options(server, "tls_only", "tests");
        assert!(come(tls_only.clone()).await.is_err());
        assert!(come(with_tls(server, tls_only, None)).await.is_ok());

        let certified = options(server, "certified", "tests");
        for (client, welcome) in [
            (None, false),
            (Some("stranger"), false),
            (Some("certified"), true),
        ] {
            let came = come(with_tls(server, certified.clone(), client)).await;
            assert_eq!(came.is_ok(), welcome, "{client:?}: {came:?}");
        }
    }

    #[tokio::test]
    async fn it_stands_still_dies_and_comes_back_with_all_that_it_answered() {
        let Some(server) = Server::own("MariaDB dies", Kind::MariaDb, &[]) else {
            return;
        };
        let connect = async || mysql_async::Conn::from_url(server.url()).await.unwrap();
        let mut first = connect().await;
        first
            .query_drop("CREATE TABLE kept(x int) ENGINE=InnoDB")
            .await
            .unwrap();
        server.freeze().await;
        let comes = mysql_async::Conn::from_url(server.url());
        assert!(tokio::time::timeout(NO_ANSWER, comes).await.is_err());
        server.thaw().await;
        first
            .query_drop("INSERT INTO kept VALUES (2)")
            .await
            .unwrap();
        server.kill().await;
        assert!(first.query_drop("SELECT 1").await.is_err());
        support::gone(server.port).await;
        server.restart().await;
        let kept: Option<i32> = connect()
            .await
            .query_first("SELECT x FROM kept")
            .await
            .unwrap();
        assert_eq!(kept, Some(2));
    }
}

mod etcd {
    use super::*;

    fn client(server: &Server, certified: bool) -> reqwest::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder().timeout(Duration::from_secs(20));
        if server.url().starts_with("https") {
            let read = |key: &str| std::fs::read(server.told(key)).unwrap();
            let ca = reqwest::Certificate::from_pem(&read("/ca")).unwrap();
            builder = builder.tls_certs_only([ca]);
            if certified {
                let pem = [read("/clientKey"), read("/clientCert")].concat();
                builder = builder.identity(reqwest::Identity::from_pem(&pem).unwrap());
            }
        }
        builder.build().unwrap()
    }

    async fn ask(
        client: &reqwest::Client,
        server: &Server,
        path: &str,
        token: &str,
        body: &Value,
    ) -> Result<Value, String> {
        let asked = client.post(format!("{}{path}", server.url()));
        let answer = asked.header("authorization", token).json(body).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        let good = answer.status().is_success();
        let body: Value = answer.json().await.map_err(|error| error.to_string())?;
        if good {
            Ok(body)
        } else {
            Err(body.to_string())
        }
    }

    #[tokio::test]
    async fn it_stands_still_dies_and_comes_back_with_all_that_it_answered() {
        let Some(server) = Server::own("etcd dies", Kind::Etcd, &[]) else {
            return;
        };
        let client = client(&server, false);
        let put = json!({ "key": "YQ==", "value": "Yg==" });
        ask(&client, &server, "/v3/kv/put", "", &put).await.unwrap();
        server.freeze().await;
        let asked = ask(&client, &server, "/v3/kv/put", "", &put);
        assert!(tokio::time::timeout(NO_ANSWER, asked).await.is_err());
        server.thaw().await;
        server.kill().await;
        assert!(ask(&client, &server, "/v3/kv/put", "", &put).await.is_err());
        server.restart().await;
        let range = json!({ "key": "YQ==" });
        let found = ask(&client, &server, "/v3/kv/range", "", &range)
            .await
            .unwrap();
        assert_eq!(found["kvs"][0]["value"], "Yg==");
    }

    #[tokio::test]
    async fn users_and_certificates_are_asked_for() {
        let args = ["--mtls", "--auth"];
        let Some(server) = Server::own("users of etcd", Kind::Etcd, &args) else {
            return;
        };
        let stranger = client(&server, false);
        let client = client(&server, true);
        let credentials = json!({
            "name": server.told("/odd/user"), "password": server.told("/odd/password"),
        });
        let login = "/v3/auth/authenticate";
        assert!(
            ask(&stranger, &server, login, "", &credentials)
                .await
                .is_err()
        );
        let told = ask(&client, &server, login, "", &credentials)
            .await
            .unwrap();
        let token = told["token"].as_str().unwrap();

        // "cluster:a" is its own, "other" is not.
        let put = async |token: &str, key: &str| {
            let body = json!({ "key": key, "value": "Yg==" });
            ask(&client, &server, "/v3/kv/put", token, &body).await
        };
        put(token, "Y2x1c3RlcjphCg==").await.unwrap();
        assert!(
            put(token, "b3RoZXI=")
                .await
                .unwrap_err()
                .contains("permission denied")
        );
        assert!(put("", "Y2x1c3RlcjphCg==").await.is_err());
    }
}

#[tokio::test]
async fn several_of_a_kind_run_side_by_side_and_vanish_with_their_values() {
    for kind in [Kind::Redis, Kind::Valkey, Kind::MariaDb, Kind::Etcd] {
        let test = "two servers";
        let (Some(one), Some(two)) = (Server::own(test, kind, &[]), Server::own(test, kind, &[]))
        else {
            return;
        };
        assert_ne!(one.port, two.port);
        let folders = [&one, &two].map(|server| server.told("/dir").to_owned());
        for folder in &folders {
            assert_eq!(processes_of(folder).len(), 1, "{kind:?}");
        }
        let asked = Instant::now();
        drop((one, two));
        for folder in &folders {
            assert!(
                processes_of(folder).is_empty(),
                "{kind:?} after {:?}",
                asked.elapsed()
            );
            assert!(!Path::new(folder).exists());
        }
    }
}

/// Those that work in a folder, or were told of it. One that is dead has neither.
fn processes_of(folder: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| {
        let path = entry.unwrap().path();
        let told = std::fs::read(path.join("cmdline")).ok()?;
        let told = String::from_utf8_lossy(&told).replace('\0', " ");
        let works_in =
            std::fs::read_link(path.join("cwd")).is_ok_and(|dir| dir.starts_with(folder));
        (works_in || told.contains(folder)).then(|| format!("{} {told}", path.display()))
    })
    .collect()
}
