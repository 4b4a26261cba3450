-- Held out: the column structure of the music store sample (Chinook), with synthetic rows. Detectors were not tuned on it.
CREATE TABLE "Artist" ("ArtistId" int PRIMARY KEY, "Name" varchar(120));
CREATE TABLE "Album" ("AlbumId" int PRIMARY KEY, "Title" varchar(160) NOT NULL, "ArtistId" int NOT NULL REFERENCES "Artist");
CREATE TABLE "Employee" ("EmployeeId" int PRIMARY KEY, "LastName" varchar(20) NOT NULL, "FirstName" varchar(20) NOT NULL, "Title" varchar(30), "ReportsTo" int REFERENCES "Employee", "BirthDate" timestamp, "HireDate" timestamp, "Address" varchar(70), "City" varchar(40), "State" varchar(40), "Country" varchar(40), "PostalCode" varchar(10), "Phone" varchar(24), "Fax" varchar(24), "Email" varchar(60));
CREATE TABLE "Customer" ("CustomerId" int PRIMARY KEY, "FirstName" varchar(40) NOT NULL, "LastName" varchar(20) NOT NULL, "Company" varchar(80), "Address" varchar(70), "City" varchar(40), "State" varchar(40), "Country" varchar(40), "PostalCode" varchar(10), "Phone" varchar(24), "Fax" varchar(24), "Email" varchar(60) NOT NULL, "SupportRepId" int REFERENCES "Employee");
CREATE TABLE "Genre" ("GenreId" int PRIMARY KEY, "Name" varchar(120));
CREATE TABLE "MediaType" ("MediaTypeId" int PRIMARY KEY, "Name" varchar(120));
CREATE TABLE "Playlist" ("PlaylistId" int PRIMARY KEY, "Name" varchar(120));
CREATE TABLE "Track" ("TrackId" int PRIMARY KEY, "Name" varchar(200) NOT NULL, "AlbumId" int REFERENCES "Album", "MediaTypeId" int NOT NULL REFERENCES "MediaType", "GenreId" int REFERENCES "Genre", "Composer" varchar(220), "Milliseconds" int NOT NULL, "Bytes" int, "UnitPrice" numeric(10,2) NOT NULL);
CREATE TABLE "Invoice" ("InvoiceId" int PRIMARY KEY, "CustomerId" int NOT NULL REFERENCES "Customer", "InvoiceDate" timestamp NOT NULL, "BillingAddress" varchar(70), "BillingCity" varchar(40), "BillingState" varchar(40), "BillingCountry" varchar(40), "BillingPostalCode" varchar(10), "Total" numeric(10,2) NOT NULL);
CREATE TABLE "InvoiceLine" ("InvoiceLineId" int PRIMARY KEY, "InvoiceId" int NOT NULL REFERENCES "Invoice", "TrackId" int NOT NULL REFERENCES "Track", "UnitPrice" numeric(10,2) NOT NULL, "Quantity" int NOT NULL);

INSERT INTO "Artist" SELECT n, made.pick(n, ARRAY['The Red Vans', 'Blue Orbit', 'Iron Daisy', 'Quartet Nine']) || ' ' || n FROM generate_series(1, 60) n;
INSERT INTO "Album" SELECT n, 'Live at No. ' || n, 1 + n % 60 FROM generate_series(1, 80) n;
INSERT INTO "Employee" SELECT n, made.last(n), made.first(n), 'Sales Support', CASE WHEN n > 1 THEN 1 END, made.past(n, 1947, 40), made.past(n, 2012, 5), made.street(n), made.city(n), 'AB', 'Canada', 'T2P 2T' || n % 10, '+1 (403) 262-' || made.digits(n, 4), '+1 (403) 263-' || made.digits(n, 4), lower(made.first(n)) || n || '@store.test' FROM generate_series(1, 8) n;
INSERT INTO "Customer" SELECT n, made.first(n), made.last(n), CASE WHEN n % 6 = 0 THEN 'Works ' || n || ' Inc.' END, made.street(n), made.city(n), 'SP', 'Brazil', made.digits(n, 5) || '-' || made.digits(n + 1, 3), '+55 (12) 3923-' || made.digits(n, 4), CASE WHEN n % 5 = 0 THEN '+55 (12) 3924-' || made.digits(n, 4) END, lower(made.first(n)) || n || '@mail.test', 1 + n % 8 FROM generate_series(1, 59) n;
INSERT INTO "Genre" SELECT n, made.pick(n, ARRAY['Rock', 'Jazz', 'Metal']) FROM generate_series(1, 25) n;
INSERT INTO "MediaType" SELECT n, 'Audio file ' || n FROM generate_series(1, 5) n;
INSERT INTO "Playlist" SELECT n, 'Mix ' || n FROM generate_series(1, 18) n;
INSERT INTO "Track" SELECT n, 'Song of the Road ' || n, 1 + n % 80, 1 + n % 5, 1 + n % 25, made.first(n) || ' ' || made.last(n), 200000 + n, 5000000 + n, 0.99 FROM generate_series(1, 300) n;
INSERT INTO "Invoice" SELECT n, 1 + n % 59, timestamp '2021-01-01' + n * interval '1 day', made.street(n), made.city(n), 'SP', 'Brazil', made.digits(n, 5), n / 10.0 FROM generate_series(1, 200) n;
INSERT INTO "InvoiceLine" SELECT n, 1 + n % 200, 1 + n % 300, 0.99, 1 FROM generate_series(1, 300) n;
