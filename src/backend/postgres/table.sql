CREATE TABLE IF NOT EXISTS $table (
  election text COLLATE "C" PRIMARY KEY,
  instance text NOT NULL,
  nonce bigint NOT NULL,
  token bigint NOT NULL,
  attempt bigint NOT NULL,
  expires_at timestamptz NOT NULL
) WITH (fillfactor = 50)
