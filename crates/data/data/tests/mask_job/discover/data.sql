-- Generators of synthetic values. Every value is a function of its row number, so the data is the same every time.
CREATE SCHEMA IF NOT EXISTS made;
CREATE FUNCTION made.pick(n bigint, list text[]) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT list[1 + ((n * 7919 + n / 7) % array_length(list, 1))::int]';
CREATE FUNCTION made.first(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT made.pick(n, ARRAY['Aaron','Adam','Anna','Carla','Daniel','Emma','Felix','Grace','Hugo','Ida','Xymena','Tuomas','Bogdana'])$$;
CREATE FUNCTION made.last(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT made.pick(n * 3 + 1, ARRAY['Abbott','Adams','Garcia','Miller','Brown','Novak','Zwick','Smith','Okafor','Lindqvist','Vrba'])$$;
CREATE FUNCTION made.street(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT (1 + n * 17 % 400) || ' ' || made.pick(n, ARRAY['Oak Street','Mill Lane','Park Avenue','Hill Road','River Drive'])$$;
CREATE FUNCTION made.city(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT made.pick(n * 5, ARRAY['Aarhus','Amsterdam','Lethbridge','Woodridge','Springfield','Antwerp','Akron'])$$;
CREATE FUNCTION made.digits(n bigint, length int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT left(lpad(((n * 982451653 + 12345) % 1000000007)::text, 10, '0') || lpad(((n * 57885161) % 1000003)::text, 6, '0'), length)$$;
CREATE FUNCTION made.past(n bigint, from_year int, years int) RETURNS date LANGUAGE sql IMMUTABLE AS
    $$SELECT make_date(from_year, 1, 1) + ((n * 7919) % (years * 365))::int$$;
