-- Shared by the scripts of files: `file:<id>` is a hash, `files` lists the ids, `files:due` when each expires.

local function forget_file(id)
  local bytes = redis.call('HGET', P .. 'file:' .. id, 'bytes')
  if bytes then redis.call('DECRBY', P .. 'files:bytes', bytes) end
  redis.call('DEL', P .. 'file:' .. id)
  redis.call('ZREM', P .. 'files', id)
  redis.call('ZREM', P .. 'files:due', id)
end

-- Add a file that is whole, once. Returns {created, expires}
local function add_file(id, about, bytes, path, ttl_ms, now)
  local key = P .. 'file:' .. id
  local known = redis.call('HMGET', key, 'created', 'expires')
  if known[1] then return known end -- this call again, as its answer was lost
  local expires = whole(now + ttl_ms)
  redis.call('HSET', key, 'about', about, 'bytes', bytes, 'path', path, 'created', whole(now), 'expires', expires)
  redis.call('ZADD', P .. 'files', 0, id)
  redis.call('ZADD', P .. 'files:due', expires, id)
  redis.call('ZADD', P .. 'objects', expires, path)
  redis.call('INCRBY', P .. 'files:bytes', bytes)
  return {whole(now), expires}
end
