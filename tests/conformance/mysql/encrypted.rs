//! Every form of URL against the real server: sockets, users with odd names, and encryption.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use whenleader::backend::BackendError;
use whenleader::lease::FailureKind::Fatal;

use super::database::{Database, is_mysql, kind, sql};
use crate::suite::{Client, LONG, name, open};
use crate::support::{Server, TempDir};

async fn works(url: &str) {
    let client = Client::new(url, "a").await;
    let election = name(&format!("by way of {}", client.backend.describe()));
    let token = client.win(&election, LONG).await;
    assert!(client.release(&election, token).await);
}

async fn refused(url: &str, code: &str) -> BackendError {
    let error = open(url).prepare().await.expect_err(url);
    assert_eq!((error.kind, error.code), (Fatal, code), "{url}: {error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_url_leads_to_the_server() {
    let Some(database) = Database::new("every_form_of_url_leads_to_the_server").await else {
        return;
    };
    let (server, name) = (database.server, &database.name);
    let port = server.port;
    let socket = server.told("/socket");
    let encoded = socket.replace('/', "%2F");
    sql(
        server,
        &format!("GRANT ALL ON {name}.* TO 'odd user@team'@'127.0.0.1'"),
    )
    .await;
    let odd = server.told("/odd/url");
    sql(
        server,
        "CREATE USER IF NOT EXISTS local@localhost IDENTIFIED BY 'tests'",
    )
    .await;
    sql(server, &format!("GRANT ALL ON {name}.* TO local@localhost")).await;
    for url in [
        database.url(),
        database.url().replace("mysql:", "mariadb:"),
        database.url().replace("mysql:", "MySQL:"),
        format!("{odd}?table={name}.Other_leases"),
        format!(
            "{}?table=a-b%20c%C3%A9&connectionLimit=3&charset=utf8",
            database.url()
        ),
        format!("mysql://local:tests@localhost/{name}?socket={socket}"),
        format!("mysql://local:tests@/{name}?socket={encoded}&ssl-mode=preferred"),
        format!("mysql://local:tests@{encoded}/{name}"),
        format!("mysql://root:tests@127.0.0.1:1,127.0.0.1:{port}/{name}"),
        format!("mysql://local:tests@%2Fnothing,{encoded}/{name}"),
    ] {
        works(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_is_what_the_url_says_and_a_server_is_believed_only_if_it_is_trusted() {
    let test = "encryption_is_what_the_url_says_and_a_server_is_believed_only_if_it_is_trusted";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let (server, database_name) = (database.server, &database.name);
    for user in ["tls_only", "certified"] {
        sql(
            server,
            &format!("GRANT ALL ON {database_name}.* TO {user}@'127.0.0.1'"),
        )
        .await;
    }
    let url = |user: &str, behind: &str| {
        format!(
            "mysql://{user}:tests@127.0.0.1:{}/{database_name}?{behind}",
            server.port
        )
    };
    let ca = server.told("/ca");
    let files = |who: &str| {
        format!(
            "cert={}&key={}",
            server.told(&format!("/{who}/cert")),
            server.told(&format!("/{who}/key"))
        )
    };
    let dir = TempDir::new();
    let stranger = dir.path().join("stranger.pem");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(&stranger, params.self_signed(&key).unwrap().pem()).unwrap();
    let stranger = stranger.display();
    let nothing = dir.path().join("nothing.pem");
    let nothing = nothing.display();

    // This user gets in encrypted, or not at all.
    for behind in [
        "",
        "ssl-mode=preferred",
        "ssl-mode=REQUIRED",
        "sslmode=require",
        "ssl={%22rejectUnauthorized%22:false}",
        &format!("ssl-mode=verify_ca&ca={ca}"),
        &format!("ssl-mode=verify_identity&ca={ca}"),
        &format!("ca={ca}"),
        &format!("sslmode=verify-full&sslrootcert={ca}"),
        &format!("ssl=true&ca={ca}"),
    ] {
        works(&url("tls_only", behind)).await;
    }
    refused(&url("tls_only", "ssl-mode=disabled"), "refused").await;
    for (what, behind) in [
        (
            "the public authorities",
            "ssl-mode=verify_identity".to_owned(),
        ),
        ("the public authorities", "ssl-mode=verify_ca".to_owned()),
        ("another authority", format!("ca={stranger}")),
        (
            "another authority",
            format!("ssl-mode=verify_ca&ca={stranger}"),
        ),
        (
            "another authority",
            format!("ssl-mode=required&ca={stranger}"),
        ),
        ("no such file", format!("ca={nothing}")),
        (
            "no certificate",
            format!("ca={}", server.told("/certified/key")),
        ),
    ] {
        let error = refused(&url("tls_only", &behind), "certificate").await;
        assert!(
            error.message.contains("certificate")
                || error.message.contains("PEM")
                || error.message.contains("No such file"),
            "{what}: {error}"
        );
    }

    works(&url(
        "certified",
        &format!("ca={ca}&{}", files("certified")),
    ))
    .await;
    works(&url(
        "certified",
        &format!("ssl-mode=required&{}", files("certified")),
    ))
    .await;
    refused(&url("certified", &format!("ca={ca}")), "refused").await;
    refused(
        &url("certified", &format!("ca={ca}&{}", files("stranger"))),
        "refused",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_in_a_certificate_counts_with_verify_identity_alone() {
    let test = "the_name_in_a_certificate_counts_with_verify_identity_alone";
    let Some(database) = Database::new(test).await else {
        return;
    };
    // Another address of this machine, which is not in the server's certificate.
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let (target, port) = (database.server.port, listener.local_addr().unwrap().port());
    let forwarding = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let ca = database.server.told("/ca");
    let url = database.url_to(port).replace("127.0.0.1", "127.0.0.2");
    for behind in [
        "ssl-mode=required".to_owned(),
        format!("ssl-mode=verify_ca&ca={ca}"),
    ] {
        works(&format!("{url}?{behind}")).await;
    }
    let error = refused(&format!("{url}?ca={ca}"), "certificate").await;
    assert!(error.message.contains("127.0.0.2"), "{error}");
    forwarding.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_encryption_is_used_only_by_those_who_do_not_mind() {
    let test = "a_server_without_encryption_is_used_only_by_those_who_do_not_mind";
    let flag = if is_mysql() {
        "--flag=--tls-version="
    } else {
        "--flag=--skip-ssl"
    };
    let Some(server) = Server::own(test, kind(), &[flag]) else {
        return;
    };
    for behind in ["", "?ssl-mode=preferred", "?ssl-mode=disabled"] {
        works(&format!("{}{behind}", server.url())).await;
    }
    for behind in ["?ssl-mode=required", "?ssl-mode=verify_identity"] {
        let error = refused(&format!("{}{behind}", server.url()), "certificate").await;
        assert!(error.message.contains("no encryption"), "{error}");
    }
}
