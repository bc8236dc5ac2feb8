-- Take a place on the first of these replicas that has one.
-- ARGV: prefix, id of the call, lease ms, tenant ('' where machines are not billed), digest of its prompt's beginning
--   ('' none), the homes of that which the worker knows, each between line ends, how many replicas, name and cap of each;
--   then replica, id and tokens of each call that has ended
-- homes: hash, digest -> lines 'moment name' of the replicas that had it last. Once there are MOST_HOMES they become
--   homes_before, from which they are taken over as they are used.
-- Returns {number of the replica (0 is none), calls that each has now, homes}. Homes that the worker does not know are
--   told instead of taking a place.
local MOST_HOMES = 5000
local HOME_MS = 20000 -- without a call, then one home is left: the last
local id, hold, tenant, digest, known = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local last = 7 + 2 * tonumber(ARGV[7])
local now, taken, counts = now_ms(), 0, {}
local alive = '(' .. whole(since(now, hold))
for i = last + 1, #ARGV, 3 do leave(ARGV[i], ARGV[i + 1], now, ARGV[i + 2]) end
for i = 8, last, 2 do
  local key = P .. 'places:' .. ARGV[i]
  local n = #counts + 1
  counts[n] = redis.call('ZCOUNT', key, alive, '+inf')
  if redis.call('ZSCORE', key, id) then taken = n end -- this call again, as its answer was lost
end

local homes, at = {}, {}
if digest ~= '' then
  local found = redis.call('HGET', P .. 'homes', digest) or redis.call('HGET', P .. 'homes_before', digest) or ''
  for moment, name in string.gmatch(found, '(%d+) ([^\n]+)') do
    if #homes == 0 or now - tonumber(moment) <= HOME_MS then -- the last one comes first
      homes[#homes + 1] = name
      at[name] = tonumber(moment)
    end
  end
  if taken == 0 then
    for _, name in ipairs(homes) do
      if not string.find(known, '\n' .. name .. '\n', 1, true) then return {0, counts, homes} end
    end
  end
end

if taken == 0 then
  for n, count in ipairs(counts) do
    if count < tonumber(ARGV[7 + 2 * n]) then
      taken, counts[n] = n, count + 1
      break
    end
  end
end
if taken == 0 then return {0, counts, homes} end

local replica = ARGV[6 + 2 * taken]
local key = P .. 'places:' .. replica
redis.call('ZADD', key, whole(now + hold), id)
redis.call('PEXPIRE', key, KEEP_MS)
if tenant ~= '' then
  redis.call('HSETNX', P .. 'began:' .. replica, id, whole(now) .. ' ' .. tenant)
  redis.call('PEXPIRE', P .. 'began:' .. replica, KEEP_MS)
end
if digest ~= '' then
  local lines, others = {whole(now) .. ' ' .. replica}, {}
  for _, name in ipairs(homes) do
    if name ~= replica then
      lines[#lines + 1] = whole(at[name]) .. ' ' .. name
      others[#others + 1] = name
    end
  end
  redis.call('HSET', P .. 'homes', digest, table.concat(lines, '\n'))
  redis.call('PEXPIRE', P .. 'homes', KEEP_MS)
  if redis.call('HLEN', P .. 'homes') >= MOST_HOMES then redis.call('RENAME', P .. 'homes', P .. 'homes_before') end
  homes = {replica, unpack(others)}
end
return {taken, counts, homes}
