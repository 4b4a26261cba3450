-- A shop: customers, addresses, cards, orders, support notes. :customers stands for their count; there are ten rows in all
-- for each. Made by the server itself, the same every time.
CREATE SCHEMA shop;
CREATE TYPE shop.status AS ENUM ('new', 'paid', 'sent', 'lost');
CREATE DOMAIN shop.email AS varchar(120) CHECK (VALUE LIKE '%_@_%');

CREATE TABLE shop.customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email shop.email NOT NULL UNIQUE,
    first_name text,
    last_name text NOT NULL,
    phone varchar(20),
    born date,
    tags text[] NOT NULL DEFAULT '{}',
    settings jsonb,
    shown text GENERATED ALWAYS AS (last_name || ', ' || coalesce(first_name, '?')) STORED,
    active boolean NOT NULL DEFAULT true
);
CREATE TABLE shop.cards (
    pan char(16) PRIMARY KEY,
    customer_email shop.email NOT NULL REFERENCES shop.customers (email),
    holder varchar(60) NOT NULL,
    limit_eur numeric(12, 2) CHECK (limit_eur > 0)
);
CREATE TABLE shop.orders (
    id uuid NOT NULL,
    customer bigint NOT NULL REFERENCES shop.customers,
    card char(16) REFERENCES shop.cards,
    placed timestamptz NOT NULL,
    total double precision NOT NULL,
    status shop.status NOT NULL,
    PRIMARY KEY (id, placed)
) PARTITION BY RANGE (placed);
CREATE TABLE shop.orders_old PARTITION OF shop.orders FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE shop.orders_new PARTITION OF shop.orders FOR VALUES FROM ('2024-01-01') TO (MAXVALUE);
CREATE TABLE public."Support Notes" (
    id serial PRIMARY KEY,
    "customer id" bigint REFERENCES shop.customers ON DELETE CASCADE,
    "Text" text,
    raw json
);
CREATE INDEX ON shop.orders (customer);
CREATE UNIQUE INDEX ON shop.customers (lower(email));
CREATE VIEW shop.totals AS SELECT customer, sum(total) AS total FROM shop.orders GROUP BY customer;
CREATE MATERIALIZED VIEW shop.best AS SELECT * FROM shop.totals ORDER BY total DESC LIMIT 10;
CREATE FUNCTION shop.refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no triggers while copying'; END $$;

INSERT INTO shop.customers (email, first_name, last_name, phone, born, tags, settings, active)
SELECT format('%s.%s@%s', lower((ARRAY['anna', 'bob', 'chloe', 'dmitri', 'eve', 'fatima'])[1 + n % 6]), n,
        (ARRAY['mail.test', 'shop.example', 'post.test'])[1 + n % 3]),
    CASE WHEN n % 11 <> 0 THEN (ARRAY['Anna', 'Bob', 'Chloé', 'Дмитрий', '美咲', 'Fatima', 'Zoë', 'Łukasz'])[1 + (n * 7) % 8] END,
    (ARRAY['Müller', 'O''Neil', 'Ångström', 'Иванов', '田中', 'de la Cruz', 'Smith', 'Nguyễn', E'Tab\tber', 'back\slash'])[1 + (n * 13) % 10]
        || CASE WHEN n % 5 = 0 THEN '-' || n ELSE '' END,
    CASE WHEN n % 7 <> 0 THEN '+49 30 ' || lpad(((n::bigint * 7919) % 10000000)::text, 7, '0') END,
    CASE WHEN n % 13 <> 0 THEN date '1940-01-01' + (n * 37) % 24000 END,
    CASE WHEN n % 4 = 0 THEN ARRAY['vip', 'a "quoted" tag', NULL] ELSE '{}' END,
    CASE WHEN n % 3 = 0 THEN jsonb_build_object('theme', 'dark', 'n', n) END,
    n % 17 <> 0
FROM generate_series(1, :customers) AS n;

INSERT INTO shop.cards
SELECT body || ((10 - (SELECT sum(CASE WHEN at % 2 = 1 THEN (d * 2) / 10 + (d * 2) % 10 ELSE d END)
        FROM (SELECT at, substr(body, at, 1)::int AS d FROM generate_series(1, 15) AS at) AS digits) % 10) % 10)::text,
    email, upper(last_name), CASE WHEN n % 9 <> 0 THEN 100 + (n % 9000) * 1.5 END
FROM (SELECT '4' || lpad(((id * 611953) % 100000000000000)::text, 14, '0') AS body, email, last_name, id AS n
    FROM shop.customers WHERE id % 2 = 0) AS made;

INSERT INTO shop.orders
SELECT md5('order ' || n)::uuid, 1 + (n::bigint * 31) % :customers, card.pan,
    timestamptz '2022-01-01 00:00:00+00' + (n % 1400) * interval '1 day' + (n % 86400) * interval '1.001 seconds',
    (n % 50000) / 7.0, (ARRAY['new', 'paid', 'sent', 'lost'])[1 + n % 4]::shop.status
FROM generate_series(1, :customers * 6) AS n
LEFT JOIN (SELECT pan, row_number() OVER (ORDER BY pan) AS at FROM shop.cards) AS card
    ON n % 3 <> 0 AND card.at = 1 + (n::bigint * 17) % greatest(1, :customers / 2);

INSERT INTO public."Support Notes" ("customer id", "Text", raw)
SELECT CASE WHEN n % 5 <> 0 THEN 1 + (n::bigint * 5) % :customers END,
    CASE WHEN n % 6 <> 0 THEN format(E'Ticket %s:\n\tthe customer wrote „ça va?" \\ and then called %s', n, n * 3) END,
    CASE WHEN n % 2 = 0 THEN json_build_object('by', 'agent ' || n % 20, 'text', 'secret ' || n) END
FROM generate_series(1, :customers * 5 / 2) AS n;

CREATE TRIGGER refused BEFORE INSERT ON shop.customers FOR EACH ROW EXECUTE FUNCTION shop.refused();
REFRESH MATERIALIZED VIEW shop.best;
ANALYZE;
