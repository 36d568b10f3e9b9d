SELECT version_num FROM {schema}.alembic_version
