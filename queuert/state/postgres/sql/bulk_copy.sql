-- Load staged rows.
COPY {schema}.{stage} ({columns}) FROM STDIN
