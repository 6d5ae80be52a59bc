"""Runs the migrations over the connection that coordinator.store.schema hands over."""

from alembic import context

from coordinator.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
